"""Files of a cache: map them into memory, and extend them."""

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


def map_images(path: Path, rows: int, image_shape: tuple[int, int, int]) -> Tensor:
    """Return the first rows of a file as uint8 (rows, C, H, W), read on access."""
    if not rows:
        return torch.empty((0, *image_shape), dtype=torch.uint8)
    with path.open("rb") as file:
        # Private: a write to the tensor does not change the file. No memory is reserved for such
        # writes, otherwise files larger than memory could not be mapped.
        flags = mmap.MAP_PRIVATE | _NO_RESERVE
        access = mmap.PROT_READ | mmap.PROT_WRITE
        data = mmap.mmap(file.fileno(), rows * prod(image_shape), flags, access)
    return torch.frombuffer(data, dtype=torch.uint8).view(rows, *image_shape)


@contextmanager
def extended_file(path: Path, size: int) -> Iterator[int]:
    """Extend a file to at least `size` bytes and yield its descriptor.

    The space is allocated at once: a full disk should fail now, not after hours of decoding.
    """
    file = os.open(path, os.O_RDWR)
    try:
        old_size = os.fstat(file).st_size
        if size > old_size:
            try:
                _allocate(file, old_size, size)
            except OSError:
                os.truncate(file, old_size)
                raise
        yield file
    finally:
        os.close(file)


def _allocate(file: int, old_size: int, size: int) -> None:
    try:
        os.posix_fallocate(file, old_size, size - old_size)
    except (AttributeError, OSError) as error:  # not supported by every system and file system
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.truncate(file, size)
