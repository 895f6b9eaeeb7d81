"""The index of an image cache: a text file with a line for every image file.

    ["a.jpg", [34120, 1731664800000000000], 0, 3735928559]
        a decoded file: its size and time of change, the row of its pixels, their checksum
    ["b.txt", [12, 1731664800000000000], "not an image", "13.0.0"]
        an unreadable file: its size and time of change, the reason, the version of Pillow

Every line begins with its own checksum, so that a damaged or incomplete line is detected. Lines are
appended; if a file has two lines, the last one counts.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import NamedTuple


class Stamp(NamedTuple):
    """Size and time of change of a file: if both are unchanged, so is the file."""

    size: int
    mtime_ns: int


class DecodedFile(NamedTuple):
    """A file whose pixels are cached."""

    stamp: Stamp
    row: int
    checksum: int


class BadFile(NamedTuple):
    """A file that could not be decoded."""

    stamp: Stamp
    reason: str
    pillow: str  # the version of Pillow; another one may be able to decode the file


Entry = DecodedFile | BadFile


def read_index(path: Path) -> tuple[dict[str, Entry], int]:
    """Return the entries by file name, and the number of damaged lines."""
    entries: dict[str, Entry] = {}
    damaged = 0
    for line in path.read_bytes().splitlines(keepends=True):
        checksum, _, text = line.partition(b" ")
        if checksum == _checksum(text):
            name, stamp, *fields = json.loads(text)
            kind = BadFile if isinstance(fields[0], str) else DecodedFile
            entries[name] = kind(Stamp(*stamp), *fields)
        else:
            damaged += 1
    return entries, damaged


def format_line(name: str, entry: Entry) -> bytes:
    """Return the line of a file."""
    text = json.dumps([name, *entry]).encode() + b"\n"
    return _checksum(text) + b" " + text


def _checksum(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)
