"""One file of byte strings, each at a place that is not overwritten while something refers to it.

The file is read and written by offset: the pages of a mapped file would count as memory of this
process.
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

from fedssl.core.files.atomic import sync_folder

# Every extent begins at a block boundary: a write torn by a power cut does not damage its
# neighbours.
BLOCK = 4096


class Extent:
    """A byte string in a BlobFile; its place is reserved while this object exists.

    The place is free again when the last reference is gone, be it in the live index, a snapshot or
    a kept checkpoint. Python counts the references, so no place can leak.
    """

    __slots__ = ("file", "length", "offset", "sha256")

    def __init__(self, file: BlobFile, offset: int, length: int, sha256: str) -> None:
        self.file = file
        self.offset = offset
        self.length = length
        self.sha256 = sha256

    def read(self) -> bytes:
        """Return the bytes; raise ValueError if they are not those that were written."""
        data = self.file.pread(self.offset, self.length)
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ValueError(
                f"the data at {self.offset} in {self.file.path} does not match its hash"
            )
        return data

    def __del__(self) -> None:
        self.file.freed.append((self.offset, self.offset + _whole_blocks(self.length)))


class BlobFile:
    """A file of byte strings, created by the first write. Any thread may read and write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Not under the lock: an extent may be garbage-collected in any thread at any time.
        self.freed: deque[tuple[int, int]] = deque()
        self._free = FreeList()
        self._lock = threading.Lock()
        self._dirty = False

    def put(self, data: bytes) -> Extent:
        """Write bytes to a free place. They are durable once `sync` has returned."""
        with self._lock:
            while self.freed:
                self._free.release(*self.freed.popleft())
            offset = self._free.allocate(_whole_blocks(len(data)))
        extent = Extent(self, offset, len(data), hashlib.sha256(data).hexdigest())
        remaining = memoryview(data)
        while remaining:
            written = os.pwrite(self._writer, remaining, offset)
            offset += written
            remaining = remaining[written:]
        self._dirty = True
        return extent

    def claim(self, offset: int, length: int, sha256: str) -> Extent:
        """Return an extent that an earlier process wrote; raise ValueError if its place is not
        free."""
        with self._lock:
            self._free.reserve(offset, offset + _whole_blocks(length))
        return Extent(self, offset, length, sha256)

    def pread(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes; raise ValueError if the file ends before that."""
        data = os.pread(self._reader, length, offset)
        while len(data) < length:  # one call may return less than requested
            more = os.pread(self._reader, length - len(data), offset + len(data))
            if not more:
                raise ValueError(f"{self.path} ends before {offset + length}")
            data += more
        return data

    def sync(self) -> None:
        """Wait until everything that `put` has returned is on the disk."""
        if self._dirty:
            self._dirty = False  # before the sync: a write during it needs another sync
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
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = self._open(os.O_RDWR | os.O_CREAT)
        # Without these, a power cut may lose the names of the file and of its folder.
        sync_folder(folder)
        sync_folder(folder.parent)
        return descriptor

    def _open(self, flags: int) -> int:
        descriptor = os.open(self.path, flags | os.O_CLOEXEC, 0o666)
        weakref.finalize(self, os.close, descriptor)
        return descriptor


class FreeList:
    """The free ranges of an endless file: sorted (start, end) pairs that do not touch each
    other."""

    def __init__(self) -> None:
        self._ranges = [(0, sys.maxsize)]

    def allocate(self, size: int) -> int:
        """Reserve the first range that is large enough, and return its start."""
        candidates = enumerate(self._ranges)
        i, start = next((i, start) for i, (start, end) in candidates if end - start >= size)
        self._remove(i, start, start + size)
        return start

    def reserve(self, start: int, end: int) -> None:
        """Reserve a given range; raise ValueError if a part of it is not free."""
        i = bisect_right(self._ranges, (start, sys.maxsize)) - 1
        if i < 0 or self._ranges[i][1] < end:
            raise ValueError(f"{start} to {end} is not free")
        self._remove(i, start, end)

    def release(self, start: int, end: int) -> None:
        """Free a range, and join it with the free ranges next to it."""
        i = bisect_right(self._ranges, (start, end))
        first = last = i
        if i and self._ranges[i - 1][1] == start:
            first = i - 1
            start = self._ranges[first][0]
        if i < len(self._ranges) and self._ranges[i][0] == end:
            last = i + 1
            end = self._ranges[i][1]
        self._ranges[first:last] = [(start, end)]

    def _remove(self, i: int, start: int, end: int) -> None:
        """Remove start to end from the i-th free range."""
        free_start, free_end = self._ranges[i]
        rest = [(free_start, start), (end, free_end)]
        self._ranges[i : i + 1] = [(a, b) for a, b in rest if a < b]


def _whole_blocks(length: int) -> int:
    """Return the size of the blocks that hold `length` bytes."""
    return -(-max(1, length) // BLOCK) * BLOCK
