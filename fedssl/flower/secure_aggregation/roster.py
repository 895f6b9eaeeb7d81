"""The roster of a secure sum: what all clients of a round must have in common."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, NamedTuple

from pydantic import Field

from fedssl.core.errors import ClientError
from fedssl.flower.messages import RoundTask
from fedssl.flower.secure_aggregation.keys import KEY_BYTES, PublicKeys, is_canonical

MIN_UPLOADS = 3  # in a sum: of two, each client could subtract its own
IDENTITY_BYTES = 16
Key = Annotated[bytes, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Identity = Annotated[bytes, Field(min_length=IDENTITY_BYTES, max_length=IDENTITY_BYTES)]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SessionId(NamedTuple):
    """The round of a run that keys, shares and masks belong to."""

    run: str
    attempt: int
    round: int

    @classmethod
    def of(cls, task: RoundTask) -> SessionId:
        """Return the session of a task."""
        return cls(task.run, task.attempt, task.round)


class Member(NamedTuple):
    """What a client advertises: its public keys of the round, and who it is among the clients."""

    encryption: Key
    masking: Key
    identity: Identity  # random, and the same in all rounds of a run

    @property
    def has_canonical_keys(self) -> bool:
        """True if two equal keys of members also have equal bytes."""
        return is_canonical(self.encryption) and is_canonical(self.masking)


class SecureRoster(NamedTuple):
    """The clients of a round by their public keys, and the parameters of the sum."""

    members: tuple[Member, ...]  # the clients 1, 2, …
    threshold: int  # shares that restore a secret
    words: int  # in a vector
    total_weight: Weight  # of all members
    max_weight: Weight | None = None  # to which larger weights are cut

    @property
    def indices(self) -> range:
        """The numbers of the clients."""
        return range(1, len(self.members) + 1)

    @property
    def required(self) -> int:
        """The number of clients that every phase needs."""
        return max(self.threshold, MIN_UPLOADS)

    def member(self, index: int) -> Member:
        """Return what a client has advertised."""
        return self.members[index - 1]

    def identities(self, indices: Iterable[int]) -> list[str]:
        """Return who some of the clients are, in an order that does not depend on the round."""
        return sorted(self.member(index).identity.hex() for index in indices)

    def index_of(self, keys: PublicKeys) -> int:
        """Return the number of the client with these keys."""
        members = [PublicKeys(member.encryption, member.masking) for member in self.members]
        if keys not in members:
            raise ClientError("the roster of the secure sum does not contain this client's keys")
        return members.index(keys) + 1

    def weight(self, images: int, uniform: bool) -> float:
        """Return the weight of a client."""
        if uniform:
            return 1.0
        if self.max_weight is None:
            return float(images)
        return min(float(images), self.max_weight)

    def share(self, images: int, uniform: bool) -> float:
        """Return a client's share of the total weight; raises ClientError if it is above 1."""
        share = self.weight(images, uniform) / self.total_weight
        if not 0 < share <= 1:
            raise ClientError(
                f"the weight of this client is {share:.3g} of the total that the server sent"
            )
        return share

    def digest(self, session: SessionId) -> bytes:
        """Return a hash of the roster and of the round that it belongs to."""
        members = []
        for member in self.members:
            members.append([value.hex() for value in member])
        parameters = [self.threshold, self.words, self.total_weight, self.max_weight]
        text = json.dumps([list(session), members, parameters])
        return hashlib.sha256(text.encode()).digest()

    def check(self) -> None:
        """Raise ClientError if no honest server would send this roster."""
        values: list[bytes] = []
        for member in self.members:
            if not member.has_canonical_keys:
                raise ClientError("a public key in the roster of the secure sum is not canonical")
            values += member
        if len(set(values)) != len(values):
            raise ClientError("the roster of the secure sum contains a client or a key twice")
        count = len(self.members)
        if count < MIN_UPLOADS:
            raise ClientError(
                f"the secure sum has {count} clients: with fewer than {MIN_UPLOADS}, a client "
                "could compute the model of another"
            )
        if not count < 2 * self.threshold <= 2 * count:
            raise ClientError(
                f"the threshold of the secure sum is {self.threshold} of {count} clients: it must "
                "be more than half of them"
            )


def threshold_of(count: int, fraction: float) -> int:
    """Return how many of `count` clients restore a secret: more than the fraction of them."""
    return int(fraction * count) + 1
