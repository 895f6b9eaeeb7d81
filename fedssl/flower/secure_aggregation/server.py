"""The server's part of a secure sum. It stores the running sum and never a single vector."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedssl.core.errors import FedsslError
from fedssl.flower.secure_aggregation.client import Revealed, pair_mask
from fedssl.flower.secure_aggregation.keys import public_key
from fedssl.flower.secure_aggregation.masks import Mask, Words, apply_masks
from fedssl.flower.secure_aggregation.roster import (
    Member,
    SecureRoster,
    SessionId,
    threshold_of,
)
from fedssl.flower.secure_aggregation.shamir import PRIME, restore_secret
from fedssl.flower.secure_aggregation.vector import share_word


class SecureSumError(FedsslError):
    """A round has no sum: too few clients are left, or what they sent does not fit together."""


class SecureSum:
    """One round of the protocol, from the public keys to the sum. Clients are given by name.

    Messages of clients are untrusted: a method raises ValueError for one that is not valid, and
    the client then counts as a dropout.
    """

    def __init__(self, session: SessionId, *, words: int, fraction: float, uniform: bool) -> None:
        """`fraction` of the clients cannot restore a secret; `uniform`: all have weight 1."""
        self.session = session
        self._words = words
        self._fraction = fraction
        self._uniform = uniform
        self._advertised: dict[str, Member] = {}
        self._images: dict[str, int] = {}
        self._index: dict[str, int] = {}
        self._ciphertexts: dict[int, Mapping[int, bytes]] = {}  # sender -> receiver -> shares
        self._total: Words | None = None
        self._shares: dict[int, float] = {}  # of the total weight, of clients in the sum
        self._revealed: dict[int, Revealed] = {}
        self._roster: SecureRoster | None = None

    # -- round 0 --

    def add_member(self, client: str, member: Member, images: int) -> None:
        """Record what a client with a number of images has advertised."""
        for other in self._advertised.values():
            if {*member} & {*other}:
                raise ValueError("its public keys or its identity are those of another client")
        if not member.has_canonical_keys:
            raise ValueError("one of its public keys is not canonical")
        if len(set(member)) < len(member):
            raise ValueError("its two public keys are equal")
        self._advertised[client] = member
        self._images[client] = images

    def make_roster(self, max_weight: float = math.inf) -> SecureRoster:
        """Return the roster of the clients that have advertised keys; larger weights are cut."""
        clients = list(self._advertised)
        limit = None
        if math.isfinite(max_weight):
            limit = max_weight
        roster = SecureRoster(
            members=tuple(self._advertised.values()),
            threshold=threshold_of(len(clients), self._fraction),
            words=self._words,
            total_weight=1.0,
            max_weight=limit,
        )
        weights = [roster.weight(self._images[client], self._uniform) for client in clients]
        self._roster = roster._replace(total_weight=math.fsum(weights))
        self._require(len(clients), "have advertised keys")
        self._index = {client: index for index, client in enumerate(clients, 1)}
        return self._roster

    @property
    def roster(self) -> SecureRoster:
        """The roster, once it was made."""
        assert self._roster is not None
        return self._roster

    @property
    def digest(self) -> bytes:
        """The hash of the roster."""
        return self.roster.digest(self.session)

    # -- round 1 --

    def add_ciphertexts(self, client: str, ciphertexts: Mapping[int, bytes]) -> None:
        """Record the encrypted shares that a client sends to all others."""
        index = self._index[client]
        if set(ciphertexts) != set(self.roster.indices) - {index}:
            raise ValueError("its shares are not for the other clients of the roster")
        self._ciphertexts[index] = ciphertexts

    def ciphertexts_for(self, client: str) -> dict[int, bytes]:
        """Return the encrypted shares for a client, by sender."""
        self._require(len(self._ciphertexts), "have shared their keys")
        index = self._index[client]
        ciphertexts = {}
        for sender, shares in self._ciphertexts.items():
            if sender != index:
                ciphertexts[sender] = shares[index]
        return ciphertexts

    # -- round 2 --

    def add_vector(self, client: str, vector: Words) -> None:
        """Add a client's masked vector to the sum."""
        index = self._index[client]
        if index not in self._ciphertexts or index in self._shares:
            raise ValueError("it has not shared its keys, or has sent a vector already")
        if vector.dtype != np.uint64 or vector.shape != (self._words,):
            raise ValueError(f"its vector has {vector.size} words, expected {self._words}")
        if self._total is None:
            self._total = vector.copy()
        else:
            np.add(self._total, vector, out=self._total)
        self._shares[index] = self.roster.share(self._images[client], self._uniform)

    @property
    def survivors(self) -> list[int]:
        """The clients whose vectors are in the sum."""
        self._require(len(self._shares), "have sent their upload")
        return sorted(self._shares)

    @property
    def clients_in_sum(self) -> list[str]:
        """The names of the clients whose vectors are in the sum."""
        return [client for client, index in self._index.items() if index in self._shares]

    # -- round 4 --

    def add_revealed(self, client: str, revealed: Revealed) -> None:
        """Record the shares that a client reveals to unmask the sum."""
        index = self._index[client]
        dropped = self._ciphertexts.keys() - self._shares.keys()
        if index not in self._shares or index in self._revealed:
            raise ValueError("its upload is not in the sum, or it has revealed shares already")
        if revealed.seeds.keys() != self._shares.keys() or revealed.keys.keys() != dropped:
            raise ValueError("its shares are not of the clients that they were requested for")
        for share in (*revealed.seeds.values(), *revealed.keys.values()):
            if not 0 <= share < PRIME:
                raise ValueError("one of its shares is not an element of the field")
        self._revealed[index] = revealed

    def result(self) -> tuple[Words, float]:
        """Return the sum of the vectors, and the share of the total weight that is in it."""
        self._require(len(self._revealed), "have revealed shares to unmask the sum")
        assert self._total is not None
        apply_masks(self._total, self._remaining_masks())
        expected = np.zeros(1, np.uint64)
        for share in self._shares.values():
            expected += share_word(share)
        if self._total[0] != expected[0]:
            raise SecureSumError(
                "the secure sum is not valid: a client has sent a vector or shares that do not "
                "follow the protocol"
            )
        return self._total, math.fsum(self._shares.values())

    def _remaining_masks(self) -> list[Mask]:
        """Return what must be added to the sum to remove the masks that do not cancel."""
        masks = []
        for index in self._shares:
            seed = self._restore({i: r.seeds[index] for i, r in self._revealed.items()})
            masks.append(Mask(seed, subtract=True))
        for index in self._ciphertexts.keys() - self._shares.keys():
            private = self._restore({i: r.keys[index] for i, r in self._revealed.items()})
            if public_key(private) != self.roster.member(index).masking:
                raise SecureSumError("the shares of a dropped client do not restore its key")
            for other in self._shares:
                public = self.roster.member(other).masking
                # The survivor's mask with the opposite sign is the one that `index` would add.
                masks.append(pair_mask(private, public, index, other, binding=self.digest))
        return masks

    def _restore(self, shares: dict[int, int]) -> bytes:
        chosen = dict(list(shares.items())[: self.roster.threshold])
        try:
            return restore_secret(chosen)
        except ValueError:
            raise SecureSumError(
                "the secure sum cannot be unmasked: a client has sent wrong shares"
            ) from None

    def _require(self, count: int, action: str) -> None:
        if count < self.roster.required:
            raise SecureSumError(
                f"only {count} clients {action}; the secure sum needs {self.roster.required} of "
                f"{len(self.roster.members)}"
            )
