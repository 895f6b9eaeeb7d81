"""JSON lines with a verified copy: rounds.jsonl and rounds.jsonl.copy.

The copy has the same lines, each after its number and a SHA-256 of both. A line is read from the
copy if it is intact there, else from the file, so damage to either is repaired from the other. A
file without a copy was written by an earlier version: its lines are used unverified until `repair`
creates the copy.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from itertools import count, islice, zip_longest
from pathlib import Path
from typing import IO

from fedssl.core.console import Notify
from fedssl.core.errors import RunError
from fedssl.core.files.atomic import replaced_file, sync_folder


def copy_path(path: Path) -> Path:
    """Return the path of a file's copy."""
    return path.with_name(path.name + ".copy")


class _Copy:
    """An index of the intact lines of a copy, by number from 0."""

    def __init__(self, path: Path) -> None:
        self.damaged = 0
        self._places: dict[int, tuple[int, int]] = {}
        offset = 0
        for line in whole_lines(path):
            copied = intact_line(line)
            if copied is None:
                self.damaged += 1
            else:
                number, text = copied
                self._places[number] = offset + len(line) - len(text), len(text)
            offset += len(line)
        self.count = max(self._places, default=-1) + 1

    def line(self, number: int, file: IO[bytes] | None) -> bytes | None:
        """Return a line of the open copy; None if it has no intact line of this number."""
        if file is None or number not in self._places:
            return None
        offset, length = self._places[number]
        file.seek(offset)
        return file.read(length)


def intact_line(copied: bytes) -> tuple[int, bytes] | None:
    """Return the number and the text of a line of a copy; None if the line is damaged."""
    number, _, rest = copied.partition(b" ")
    text = rest.partition(b" ")[2]
    if number.isdigit() and len(number) < 12 and copied == _with_hash(int(number), text):
        return int(number), text
    return None


def read_lines(path: Path, notify: Notify) -> Iterator[bytes]:
    """Yield all whole lines, verified, one at a time; skip a last line that a kill cut short."""
    copy = _Copy(copy_path(path))
    lines = whole_lines(path)
    differences = 0
    with contextlib.ExitStack() as stack:
        file = None
        if copy.count:
            file = stack.enter_context(copy_path(path).open("rb"))
        for number in count():
            line = next(lines, None)
            copied = copy.line(number, file)
            if copied is not None:
                if line is not None and line != copied:
                    differences += 1
                yield copied
            elif line is not None and (number < copy.count or not differences):
                # After a damaged line break, lines past the end of the copy are parts of others.
                yield line
            elif number < copy.count:
                raise RunError(
                    f"line {number + 1} of {path} is damaged, and so is its copy; nothing was "
                    "changed. Restore the file from a backup, or start in a new directory"
                )
            else:
                break
    if differences:
        notify(f"{path} is damaged (lines: {differences}); {copy_path(path).name} was read instead")
    elif copy.damaged:
        notify(
            f"{copy_path(path)} is damaged (lines: {copy.damaged}); {path.name} was read instead"
        )


def repair(path: Path, notify: Notify) -> int:
    """Rewrite a file and its copy where they differ; return the number of lines.

    The caller holds the directory's lock.
    """
    copy = copy_path(path)
    lengths = [len(line) for line in whole_lines(path)]
    if _have_same_lines(path, copy, size=sum(lengths)):
        return len(lengths)
    if lengths and not copy.exists():
        notify(
            f"{path} was written by an earlier version without hashes: "
            "its lines could not be verified"
        )
    number = 0
    with replaced_file(path) as plain, replaced_file(copy) as hashed:  # the copy first
        for line in read_lines(path, notify):
            plain.write(line)
            hashed.write(_with_hash(number, line))
            number += 1
    return number


def _have_same_lines(path: Path, copy: Path, size: int) -> bool:
    """True if both files hold the same whole lines, `size` bytes in the file, and nothing else."""
    if not path.exists() or not copy.exists() or path.stat().st_size != size:
        return not path.exists() and not copy.exists()
    copy_size = 0
    pairs = zip_longest(whole_lines(path), whole_lines(copy))
    for number, (line, copied) in enumerate(pairs):
        if line is None or copied != _with_hash(number, line):
            return False
        copy_size += len(copied)
    return copy.stat().st_size == copy_size


def truncate(path: Path, kept: int) -> None:
    """Keep the first lines of a file and of its copy; create the files if they do not exist."""
    for file_path in (copy_path(path), path):
        size = sum(map(len, islice(whole_lines(file_path), kept)))
        with file_path.open("ab") as file:
            file.truncate(size)
            os.fsync(file.fileno())
    sync_folder(path.parent)


def append(path: Path, number: int, line: bytes) -> None:
    """Append a line, the `number`th from 0, to the copy and then to the file.

    Only the file is synced: a line that a power cut takes from the copy is read from the file.
    """
    with copy_path(path).open("ab") as file:
        file.write(_with_hash(number, line))
    with path.open("ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file that end with a line break; no line if the file does not exist."""
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line


def _with_hash(number: int, line: bytes) -> bytes:
    """Return a line as it is in the copy."""
    text = b"%d %s" % (number, line)
    return b"%d %s %s" % (number, hashlib.sha256(text).hexdigest().encode(), line)
