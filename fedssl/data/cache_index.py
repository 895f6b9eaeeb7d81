"""The index of an image cache: its file `ledger` has a line for every image file.

    {"pixels": "pixels-0.u8", "folder": "/home/me/photos"}
        the file that holds the pixels, and the folder of the image files
    ["a.jpg", 34120, 1731664800000000000, 0, 3735928559]
        a decoded file: its size, its time of change, the row of its pixels, their checksum
    ["b.txt", 12, 1731664800000000000, "not an image", "13.0.0"]
        an unreadable file: its size, its time of change, the reason, the version of Pillow
    true
        all lines above were written by builds that completed

Every line begins with a checksum. Lines are appended, or the file is replaced as a whole. A line is
written after its pixels have reached the disk, so a kill leaves at worst half a line.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fedssl.core.files.atomic import sync_folder


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


class Ledger(NamedTuple):
    """The content of a ledger file."""

    pixels_file: str
    entries: dict[str, Entry]
    unconfirmed: set[str]  # names written by a build that did not complete
    damaged: bool  # the end is missing or damaged


def read(path: Path) -> Ledger | None:
    """Return all entries before the first damaged line, or None if the first line is missing."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    ledger: Ledger | None = None
    for line in data.splitlines(keepends=True):
        body = _parse_line(line)
        if isinstance(body, dict) and ledger is None:
            ledger = Ledger(body["pixels"], {}, set(), damaged=False)
        elif ledger is None:
            return None
        elif body is None:
            return ledger._replace(damaged=True)
        elif body is True:
            ledger.unconfirmed.clear()
        else:
            name, *fields = body
            ledger.entries[name] = _parse_entry(fields)
            ledger.unconfirmed.add(name)
    return ledger


def _parse_entry(fields: list[Any]) -> Entry:
    size, mtime_ns, *rest = fields
    stamp = Stamp(size, mtime_ns)
    if isinstance(rest[0], str):
        return BadFile(stamp, *rest)
    return DecodedFile(stamp, *rest)


def append(path: Path, entries: Mapping[str, Entry], *, complete: bool = False) -> None:
    """Append entries, and with `complete` the line `true`, in one write that reaches the disk."""
    with path.open("ab") as file:
        file.write(b"".join(_format_entries(entries, complete)))
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, pixels_file: str, folder: Path, entries: Mapping[str, Entry]) -> None:
    """Replace the ledger atomically."""
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    header = _format_line({"pixels": pixels_file, "folder": str(folder)})
    with create_private(temporary) as file:
        file.write(header + b"".join(_format_entries(entries, complete=True)))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def create_private(path: Path) -> BinaryIO:
    """Create a new file that only its owner may read, open for writing bytes."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _format_entries(entries: Mapping[str, Entry], complete: bool) -> Iterable[bytes]:
    for name, (stamp, *rest) in entries.items():
        yield _format_line([name, *stamp, *rest])
    if complete:
        yield _format_line(True)


def _format_line(body: Any) -> bytes:
    text = json.dumps(body, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse_line(line: bytes) -> Any | None:
    """Return the body of a line, or None if it is damaged or cut short."""
    checksum, _, text = line.removesuffix(b"\n").partition(b" ")
    intact = line.endswith(b"\n") and checksum == b"%08x" % zlib.crc32(text)
    return json.loads(text) if intact else None
