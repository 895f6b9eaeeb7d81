"""What a cache holds: a line for every file, each with a checksum; appended to, or replaced as a whole.

    {"pixels": "pixels-0.u8", "folder": "/home/me/photos"}   which file holds the pixels, and what they are of
    ["a.jpg", 34120, 1731664800000000000, 0, 3735928559]     size, time of change, row of the pixels, their checksum
    ["b.txt", 12, 1731664800000000000, "not an image", "13.0.0"]                       or why not, by which Pillow
    true                                                     all lines above were written by builds that ended well

A line is written after the pixels it speaks of have reached the disk. A kill leaves at worst half a line.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedssl.extents import sync_folder


class Stamp(NamedTuple):
    """A file unchanged in both is taken to be unchanged."""

    size: int
    changed: int  # nanoseconds


class Kept(NamedTuple):
    stamp: Stamp
    row: int
    checksum: int


class Bad(NamedTuple):
    stamp: Stamp
    reason: str
    pillow: str  # a newer one may read what this one did not


Entry = Kept | Bad


class Ledger(NamedTuple):
    pixels: str
    entries: dict[str, Entry]
    unsure: set[str]  # names written by a build that did not end
    torn: bool  # the end is missing, or damaged


def read(path: Path) -> Ledger | None:
    """Everything up to the first line that is damaged or cut short; None: not even the first line is there."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    ledger: Ledger | None = None
    for line in data.splitlines(keepends=True):
        body = _body(line)
        if isinstance(body, dict) and ledger is None:
            ledger = Ledger(body["pixels"], {}, set(), False)
        elif ledger is None:
            return None
        elif body is None:
            return ledger._replace(torn=True)
        elif body is True:
            ledger.unsure.clear()
        else:
            name, size, changed, *rest = body
            stamp = Stamp(size, changed)
            ledger.entries[name] = Bad(stamp, *rest) if isinstance(rest[0], str) else Kept(stamp, *rest)
            ledger.unsure.add(name)
    return ledger


def append(path: Path, entries: Mapping[str, Entry], *, whole: bool = False) -> None:
    """Add entries, and with `whole` the line that says all is well, in one write that reaches the disk."""
    with path.open("ab") as file:
        file.write(b"".join(_lines(entries, whole)))
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, pixels: str, folder: Path, entries: Mapping[str, Entry]) -> None:
    """A new ledger in place of the old one, at once or not at all."""
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(_line({"pixels": pixels, "folder": str(folder)}) + b"".join(_lines(entries, True)))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def _lines(entries: Mapping[str, Entry], whole: bool) -> Iterable[bytes]:
    for name, (stamp, *rest) in entries.items():
        yield _line([name, *stamp, *rest])
    if whole:
        yield _line(True)


def _line(body: Any) -> bytes:
    text = json.dumps(body, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _body(line: bytes) -> Any | None:
    checksum, _, text = line.removesuffix(b"\n").partition(b" ")
    sound = line.endswith(b"\n") and checksum == b"%08x" % zlib.crc32(text)
    return json.loads(text) if sound else None
