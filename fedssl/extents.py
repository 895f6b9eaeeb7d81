"""One file of byte strings, each at a place that is not written again while anybody refers to it.

Read and written by offset: the pages of a mapped file would count as this process's own memory.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import weakref
from bisect import bisect_right
from collections import deque
from functools import cached_property
from pathlib import Path

BLOCK = 4096  # every place begins at a block of its own: a write that a power cut tears leaves its neighbours alone


class Extent:
    """A byte string in such a file, and the claim to its place.

    The place is free again when the last reference is gone, be it the live index, a snapshot or a kept checkpoint.
    So nobody counts, and nobody can forget to.
    """

    __slots__ = ("file", "length", "offset", "sha256")

    def __init__(self, file: Extents, offset: int, length: int, sha256: str) -> None:
        self.file, self.offset, self.length, self.sha256 = file, offset, length, sha256

    def read(self) -> bytes:
        """The bytes; a ValueError if they are not those that were written."""
        data = self.file.pread(self.offset, self.length)
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ValueError(f"what lies at {self.offset} in {self.file.path} does not match its hash")
        return data

    def __del__(self) -> None:
        self.file.freed.append((self.offset, self.offset + _room(self.length)))


class Extents:
    """The file. Made when first written to; any thread may read and write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.freed: deque[tuple[int, int]] = deque()  # no lock: an extent may end in any thread at any moment
        self._gaps, self._lock, self._dirty = Gaps(), threading.Lock(), False

    def put(self, data: bytes) -> Extent:
        """Write where nobody's data lies. It lasts once `sync` has returned."""
        with self._lock:
            while self.freed:
                self._gaps.give(*self.freed.popleft())
            offset = self._gaps.take(_room(len(data)))
        extent = Extent(self, offset, len(data), hashlib.sha256(data).hexdigest())
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._writer, rest, offset)
            offset, rest = offset + written, rest[written:]
        self._dirty = True
        return extent

    def claim(self, offset: int, length: int, sha256: str) -> Extent:
        """An extent written in an earlier life; a ValueError if its place is not free."""
        with self._lock:
            self._gaps.claim(offset, offset + _room(length))
        return Extent(self, offset, length, sha256)

    def pread(self, offset: int, length: int) -> bytes:
        found = os.pread(self._reader, length, offset)
        while len(found) < length:  # one call may give less than was asked for
            more = os.pread(self._reader, length - len(found), offset + len(found))
            if not more:
                raise ValueError(f"{self.path} ends before {offset + length}")
            found += more
        return found

    def sync(self) -> None:
        """Returns when all that `put` has returned is on the disk."""
        if self._dirty:
            self._dirty = False  # before, not after: what is written meanwhile needs a sync of its own
            try:
                os.fsync(self._writer)
            except BaseException:
                self._dirty = True
                raise

    @cached_property
    def _reader(self) -> int:
        return self._open(os.O_RDONLY)

    @cached_property
    def _writer(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = self._open(os.O_RDWR | os.O_CREAT)
        for folder in (self.path.parent, self.path.parent.parent):  # or a power cut may lose the file's very name
            sync_folder(folder)
        return descriptor

    def _open(self, flags: int) -> int:
        descriptor = os.open(self.path, flags | os.O_CLOEXEC, 0o666)
        weakref.finalize(self, os.close, descriptor)
        return descriptor


class Gaps:
    """What is free of a line that begins at 0 and never ends: stretches in order, none touching the next."""

    def __init__(self) -> None:
        self._gaps = [(0, sys.maxsize)]

    def take(self, size: int) -> int:
        """The first place that is large enough."""
        i, start = next((i, start) for i, (start, end) in enumerate(self._gaps) if end - start >= size)
        self._cut(i, start, start + size)
        return start

    def claim(self, start: int, end: int) -> None:
        i = bisect_right(self._gaps, (start, sys.maxsize)) - 1
        if i < 0 or self._gaps[i][1] < end:
            raise ValueError(f"{start} to {end} is not free")
        self._cut(i, start, end)

    def _cut(self, i: int, start: int, end: int) -> None:
        before, after = self._gaps[i]
        self._gaps[i : i + 1] = [(a, b) for a, b in ((before, start), (end, after)) if a < b]

    def give(self, start: int, end: int) -> None:
        """Free again; joined with what is free next to it."""
        i = bisect_right(self._gaps, (start, end))
        first, last = i, i
        if i and self._gaps[i - 1][1] == start:
            first, start = i - 1, self._gaps[i - 1][0]
        if i < len(self._gaps) and self._gaps[i][0] == end:
            last, end = i + 1, self._gaps[i][1]
        self._gaps[first:last] = [(start, end)]


def _room(length: int) -> int:
    return -(-max(1, length) // BLOCK) * BLOCK


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last, renamed ones too; systems that cannot open folders do without."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
