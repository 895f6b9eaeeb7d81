"""purged.json: the note that `fedssl purge` leaves where it removed the state of clients.

Without it, a run or a client would start again with an empty state, and its results would differ
without a message.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedssl.core.errors import RunError
from fedssl.core.files.atomic import write_atomic
from fedssl.core.version import __version__

NAME = "purged.json"


def write_note(folder: Path, kind: str, groups: Iterable[str]) -> None:
    """Record that files of these groups were removed now from a folder of this kind."""
    note = {
        "kind": kind,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "removed": sorted(groups),
        "fedssl": __version__,
    }
    write_atomic(folder / NAME, (json.dumps(note) + "\n").encode())


def read_note(folder: Path) -> dict[str, Any] | None:
    """Return the note in a folder; None if it is missing, or not of fedssl."""
    path = folder / NAME
    if path.is_symlink() or not path.is_file():
        return None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        note = json.loads(path.read_bytes())
        if isinstance(note, dict) and note.keys() >= {"at", "removed", "fedssl"}:
            return note
    return None


def purged_at(folder: Path) -> str | None:
    """Return when the state of clients was removed from a folder; None if it was not.

    A damaged note counts, without its time.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(path.read_bytes())["at"])
    return "an unknown time"


def raise_if_purged(folder: Path) -> None:
    """Raise RunError if a run directory was purged: it must not be resumed."""
    at = purged_at(folder)
    if at is not None:
        raise RunError(
            f"{folder} cannot be resumed: `fedssl purge` removed the state of its clients or its "
            f"checkpoints ({at}). Exported backbones and results can still be used; to train "
            "again, choose another --dir"
        )
