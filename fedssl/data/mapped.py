"""A file of images: room set aside for it in advance, and mapped into memory."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

import torch
from torch import Tensor

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def mapped(path: Path, rows: int, image: tuple[int, int, int]) -> Tensor:
    """The first rows of a file as uint8 (rows, C, H, W): read when looked at, and never written."""
    if not rows:
        return torch.empty((0, *image), dtype=torch.uint8)
    with path.open("rb") as file:
        # Private: should anybody write to the tensor, the file stays as it is. No memory is set aside for that, else
        # files larger than memory would be refused.
        flags, access = mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        data = mmap.mmap(file.fileno(), rows * prod(image), flags, access)
    return torch.frombuffer(data, dtype=torch.uint8).view(rows, *image)


@contextmanager
def lengthened(path: Path, size: int) -> Iterator[int]:
    """The file's descriptor, and at once at least `size` bytes: better no room now than after hours of decoding."""
    file = os.open(path, os.O_RDWR)
    try:
        before = os.fstat(file).st_size
        if size > before:
            try:
                _set_aside(file, before, size)
            except OSError:
                os.truncate(file, before)
                raise
        yield file
    finally:
        os.close(file)


def _set_aside(file: int, before: int, size: int) -> None:
    try:
        os.posix_fallocate(file, before, size - before)
    except (AttributeError, OSError) as failure:  # neither every system nor every file system can
        if isinstance(failure, OSError) and failure.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.truncate(file, size)
