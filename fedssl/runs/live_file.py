"""live.json in a run directory: what happens in the round that is under way.

The file is written while a run trains, for `fedssl watch`, and removed when the last round is
finished. Nothing else reads it: it may be stale, and a damaged one is ignored. It contains its own
SHA-256.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import TypeAdapter

from fedssl.core.files.atomic import replaced_file
from fedssl.core.files.sealed import seal, unseal

NAME = "live.json"
MAX_BYTES = 100_000_000  # a larger file is not of this program
FILE_MODE = 0o600

Phase = Literal["joining", "training", "measuring", "trained", "stopped", "failed"]
ClientState = Literal["waiting", "training", "replied", "failed"]


class LiveClient(NamedTuple):
    """One client's part in the round that is under way."""

    state: ClientState = "waiting"
    since: float = 0.0  # seconds since the epoch; 0: since the round began
    steps: int = 0
    planned: int = 0  # steps; 0: unknown
    images: int = 0  # that it has trained on in this round
    reason: str | None = None  # why it has no upload


class LiveWarning(NamedTuple):
    """A warning, and the round after which it was given."""

    round: int
    text: str


class LiveState(NamedTuple):
    """The contents of live.json. Times are in seconds since the epoch."""

    phase: Phase
    started: float  # when this process began to train, or to wait for clients
    changed: float  # when there was news last: a step, a reply, a finished round
    round: int = 0  # that is under way, from 1; 0: none
    rounds: int = 0  # of the run
    round_started: float = 0.0
    ends: float | None = None  # the estimated end; None: unknown
    ends_of: str = ""  # what ends then; "" for the whole command
    expected: int = 0  # clients that a server waits for before the first round
    reason: str | None = None  # why training ended
    private: bool = False  # True if nothing that clients report is recorded
    replied: int = 0  # clients whose part in the round is done
    clients: Mapping[str, LiveClient] = {}  # those that were asked in this round
    # Clients whose nodes are connected, and when these were seen last; None: all are local.
    connected: Mapping[str, float] | None = None
    warnings: tuple[LiveWarning, ...] = ()


_ADAPTER = TypeAdapter(LiveState)


def write_live(folder: Path, state: LiveState) -> None:
    """Replace live.json; raise OSError if that is impossible."""
    data = seal(state._asdict())
    with replaced_file(folder / NAME, FILE_MODE, durable=False) as file:
        file.write(data)


def read_live(folder: Path) -> LiveState | None:
    """Return the contents of live.json; None if it does not exist or any byte of it changed."""
    try:
        if (folder / NAME).stat().st_size > MAX_BYTES:
            return None
        return _ADAPTER.validate_python(unseal((folder / NAME).read_bytes()))
    except (OSError, ValueError):  # pydantic's errors are ValueErrors
        return None


def remove_live(folder: Path) -> None:
    """Remove live.json if it exists; raise OSError if that is impossible."""
    (folder / NAME).unlink(missing_ok=True)
