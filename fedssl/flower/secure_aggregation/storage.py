"""A client's secrets in one round, on its node's disk between the messages of that round.

Flower starts a process for each message. The file is in the folder of the client's memory (mode
0700) and is replaced in each phase; after the last one it contains no secret. A phase that was
begun cannot be repeated: two vectors with the same masks, or two sets of survivors, would reveal an
upload. A client whose process ends within a phase drops out of the round.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import ConfigDict, TypeAdapter

from fedssl.core.console import ignore_message
from fedssl.core.errors import ClientError
from fedssl.core.files.atomic import replaced_file
from fedssl.core.files.lock import locked
from fedssl.core.files.sealed import seal, unseal
from fedssl.flower.node_memory import SUPERSEDED, NodeMemory
from fedssl.flower.secure_aggregation.client import (
    Advertised,
    ClientState,
    Finished,
    Masked,
    Shared,
)
from fedssl.flower.secure_aggregation.roster import (
    IDENTITY_BYTES,
    SecureRoster,
    SessionId,
)

FILE = "secure-sum.json"
UNREADABLE = (
    f"{FILE} in the memory folder of this client cannot be read, so the sums that it has helped to "
    "unmask are unknown and it takes no part in this run: start a new run with another seed"
)
SENT_IN_ANOTHER_RUN = (
    "this client has sent the same upload in another run, and the difference of two sums could "
    "reveal uploads: start the run with another seed"
)
OTHER_UNREADABLE = (
    f"{FILE} of another run in the memory folder of this client cannot be read, so it is unknown "
    "whether this client has sent the same upload there: fedssl purge removes the run's folder"
)
_CONFIG = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")
S = TypeVar("S", Advertised, Shared, Masked)
R = TypeVar("R")


class Stored(NamedTuple):
    """The contents of the file."""

    identity: bytes  # of this client among the clients of the run
    # By round, a hash of the sum that this client has helped to unmask: see `_sum_digest`. Rounds
    # are never removed: a server that was restored from a backup may go back to any of them.
    revealed: dict[int, str]
    sent: dict[int, str]  # by round, a hash of the upload
    phase: str  # the name of the state's class
    state: str  # as JSON


_STORED: TypeAdapter[Stored] = TypeAdapter(Stored, config=_CONFIG)
_STATES: dict[str, TypeAdapter[ClientState]] = {
    state.__name__: TypeAdapter(state, config=_CONFIG)
    for state in (Advertised, Shared, Masked, Finished)
}


class SecretFile:
    """The state of a client in the secure sum of one round."""

    def __init__(self, memory: NodeMemory, session: SessionId) -> None:
        """`memory` has claimed the client's folder for this session."""
        self._memory = memory
        self._session = session

    @property
    def path(self) -> Path:
        """The file."""
        return self._memory.folder / FILE

    def begin(self, state: Advertised) -> bytes:
        """Store the first state of a session, and return the client's identity."""
        with locked(self._memory.folder, ignore_message):
            stored = self._read()
            if stored is None:
                identity = secrets.token_bytes(IDENTITY_BYTES)
                stored = Stored(identity, revealed={}, sent={}, phase="Finished", state="")
            elif self._session <= _state(stored).session:
                raise ClientError(
                    "this client has begun the secure sum of this round or of a later one"
                )
            self._write(stored, state)
            return stored.identity

    def advance(self, kind: type[S], step: Callable[[S], tuple[ClientState, R]]) -> R:
        """Replace the state by that of the next phase; return the other result of `step`.

        `kind` is the state that the message expects. If `step` raises, the state is unchanged.
        """
        with locked(self._memory.folder, ignore_message):
            stored, state = self._expect(kind)
            following, result = step(state)
            self._write(stored, following)
            return result

    def reveal(
        self, step: Callable[[Masked], tuple[ClientState, R]], survivors: Sequence[int]
    ) -> R:
        """Do the last step, unless another sum of this round was unmasked.

        A round is repeated after the server was restarted, and its uploads are then the same: the
        difference of two sums would be the upload of a client that is in one of them, or whose
        weight was cut in one of them.
        """
        with locked(self._memory.folder, ignore_message):
            stored, state = self._expect(Masked)
            following, result = step(state)
            unmasked = _sum_digest(state.roster, survivors)
            round = self._session.round
            if stored.revealed.get(round, unmasked) != unmasked:
                raise ClientError(
                    "the sum of this round was unmasked before the server was restarted, with "
                    "other clients or weights: the difference of the two sums would reveal uploads"
                )
            revealed = {**stored.revealed, round: unmasked}
            self._write(stored._replace(revealed=revealed), following)
            return result

    def record_upload(self, digest: str) -> None:
        """Record a hash of the upload that is about to be sent.

        Raise ClientError if the client has sent an equal one in another run, as it does if a run is
        repeated with the same seed: the difference of the sums of the two runs could be the upload
        of a client that is in one of them.
        """
        with locked(self._memory.folder, ignore_message):
            stored, state = self._expect(Masked)
            sent = {**stored.sent, self._session.round: digest}
            self._replace(stored._replace(sent=sent), state)
        # Afterwards: of two runs that send it at the same time, at least one notices the other.
        for path in self._memory.folder.parent.glob(f"*/{FILE}"):
            if path != self.path and digest in _sent_in(path):
                raise ClientError(SENT_IN_ANOTHER_RUN)

    def finish(self) -> None:
        """Remove the secrets of this session.

        It needs no claim: training has claimed the folder again since, and nothing is removed if
        another session has begun.
        """
        with locked(self._memory.folder, ignore_message):
            stored = self._read()
            if stored is not None and _state(stored).session == self._session:
                self._replace(stored, Finished(self._session))

    def _expect(self, kind: type[S]) -> tuple[Stored, S]:
        """Return the contents with a state of this kind and session; raises without one."""
        stored = self._read()
        if stored is not None:
            state = _state(stored)
            if state.session == self._session and isinstance(state, kind):
                return stored, state
        raise ClientError(
            "this client is not in the phase of the secure sum that the message belongs to: it was "
            "restarted, or the message is late, repeated or of another round"
        )

    def _read(self) -> Stored | None:
        """Return the contents; None if there is no file.

        Raise ClientError if it cannot be read: without the record of unmasked sums, the client
        might help to unmask a second sum of a round.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError:
            raise ClientError(UNREADABLE) from None
        try:
            stored = _parse(content)
            _state(stored)
        except (ValueError, KeyError):
            raise ClientError(UNREADABLE) from None
        return stored

    def _write(self, stored: Stored, state: ClientState) -> None:
        if not self._memory.holds_claim():
            raise ClientError(SUPERSEDED)
        self._replace(stored, state)

    def _replace(self, stored: Stored, state: ClientState) -> None:
        kind = type(state).__name__
        text = _STATES[kind].dump_json(state).decode()
        stored = stored._replace(phase=kind, state=text)
        with replaced_file(self.path, mode=0o600) as file:
            file.write(seal({"stored": _STORED.dump_json(stored).decode()}))


def _parse(content: bytes) -> Stored:
    """Return the contents of a file; raises ValueError or KeyError if it is damaged."""
    return _STORED.validate_json(unseal(content)["stored"])


def _sent_in(path: Path) -> set[str]:
    """Return the hashes of the uploads of another run; none if its file was removed meanwhile."""
    try:
        return set(_parse(path.read_bytes()).sent.values())
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, KeyError):
        raise ClientError(OTHER_UNREADABLE) from None


def _sum_digest(roster: SecureRoster, survivors: Sequence[int]) -> str:
    """Return a hash of what a sum of uploads depends on: the clients, and where weights are cut."""
    content = [str(roster.max_weight), *roster.identities(survivors)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _state(stored: Stored) -> ClientState:
    return _STATES[stored.phase].validate_json(stored.state)
