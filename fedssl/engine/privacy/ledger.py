"""privacy.jsonl: one line per release, synced before the release leaves the merge.

A round that is computed again after a kill has new noise, and a new line: the noise is secret and
is not stored, so that the same value cannot be released again. Checkpoints and the rounds log
contain the number of lines, so that a ledger that lost some is detected. Each line contains its own
hash, and damage is repaired from `privacy.jsonl.copy`, see core/files/checked_lines.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedssl.core.console import Notify
from fedssl.core.errors import RunError
from fedssl.core.files import checked_lines
from fedssl.core.files.atomic import sync_folder
from fedssl.core.files.sealed import seal, unseal

NAME = "privacy.jsonl"


class Charge(NamedTuple):
    """One line of the ledger."""

    round: int  # from 1
    noise: float  # the standard deviation of the noise, in multiples of the clip
    clip: float
    clients: int  # that the plan asked
    epsilon: float | None  # after this release, for the client charged most; None: infinite
    delta: float


class Ledger:
    """The ledger of a run directory, whose lock the caller holds."""

    def __init__(self, folder: Path, known: int, notify: Notify) -> None:
        """`known` releases were made, according to other files of the directory."""
        self.path = folder / NAME
        checked_lines.repair(self.path, notify)
        self.charges = list(read_charges(folder, notify))
        check_complete(folder, len(self.charges), known)

    def append(self, charge: Charge) -> None:
        """Write a line, and flush it to the disk, with the folder's entry of a new file."""
        line = seal(charge._asdict()) + b"\n"
        is_new = not self.path.exists()
        checked_lines.append(self.path, len(self.charges), line)
        if is_new:
            sync_folder(self.path.parent)
        self.charges.append(charge)


def check_complete(folder: Path, charges: int, known: int) -> None:
    """Raise RunError if a ledger has fewer lines than releases are known."""
    if charges < known:
        raise RunError(
            f"{folder / NAME} has lost lines: it has {charges} of the {known} releases that other "
            "files of the run record, so epsilon would be too small. Nothing was changed. Restore "
            "the file from a backup, or start again in a new directory"
        )


def read_charges(folder: Path, notify: Notify) -> Iterator[Charge]:
    """Yield the releases of a run directory."""
    path = folder / NAME
    for number, line in enumerate(checked_lines.read_lines(path, notify), 1):
        yield _charge(path, number, line)


def _charge(path: Path, number: int, line: bytes) -> Charge:
    try:
        return Charge(**unseal(line.rstrip(b"\n")))
    except (ValueError, TypeError):
        raise RunError(
            f"line {number} of {path} is damaged and has no intact copy; nothing was changed. "
            "Restore the file from a backup, or start again in a new directory"
        ) from None
