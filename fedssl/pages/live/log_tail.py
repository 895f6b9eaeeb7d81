"""Read the lines appended to a rounds log since the last read, verified against its copy."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedssl.core.files.checked_lines import copy_path, intact_line


class NewLines(NamedTuple):
    """The lines of a log that were not read before."""

    lines: list[bytes]
    reset: bool  # True if earlier lines were removed or changed: `lines` are all that there are


class FileTail:
    """The whole lines that are appended to a file. A file that does not exist is empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._last = b""  # the last line that was read, which ends at the offset

    def read(self) -> NewLines:
        """Return the lines since the last call; all lines if the last one is no longer there."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset - len(self._last))
                reset = file.read(len(self._last)) != self._last
                if reset:
                    file.seek(0)
                    self._offset = 0
                    self._last = b""
                lines = []
                for line in file:
                    if line.endswith(b"\n"):
                        lines.append(line)
        except FileNotFoundError:
            reset = self._offset > 0
            self._offset = 0
            self._last = b""
            return NewLines([], reset)
        if lines:
            self._offset += sum(map(len, lines))
            self._last = lines[-1]
        return NewLines(lines, reset)


class LogTail:
    """The lines that are appended to a rounds log.

    A line is taken from the copy if it is intact there, as all readers of the log do.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start()

    def _start(self) -> None:
        self._lines = FileTail(self._path)
        self._copied_lines = FileTail(copy_path(self._path))
        self._copies: dict[int, bytes] = {}  # by number, those that are not used yet
        self._count = 0
        self.damaged = 0  # lines that differ from their copy

    def read(self) -> NewLines:
        """Return the lines since the last call; all lines if earlier ones were changed."""
        new = self._lines.read()
        copied = self._copied_lines.read()  # after the lines: a copy is written before its line
        reset = new.reset
        if reset or copied.reset:
            reset = True
            self._start()
            new = self._lines.read()
            copied = self._copied_lines.read()
        for line in copied.lines:
            intact = intact_line(line)
            if intact is not None and intact[0] >= self._count:
                self._copies[intact[0]] = intact[1]
        lines = []
        for line in new.lines:
            verified = self._copies.pop(self._count, line)
            self.damaged += verified != line
            lines.append(verified)
            self._count += 1
        return NewLines(lines, reset)
