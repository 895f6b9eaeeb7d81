"""Rows whose memory is used again.

A model's row is tens of megabytes, and malloc maps a block of that size anew each time: to touch its fresh pages takes
several times longer than to fill it. torch keeps freed blocks on CUDA; on a CPU this does, and asks for huge pages,
with which going through a long row is a quarter faster.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections import deque

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

LEAST = 1 << 18  # bytes; malloc keeps smaller blocks itself
_spare: deque[npt.NDArray[np.uint8]] = deque(maxlen=8)  # a ninth frees the one that has lain here longest


def row(length: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
    """A new tensor (length,) of any content. Its memory comes back when the last tensor that shares it is gone."""
    size = length * dtype.itemsize
    if size < LEAST or torch.device(device).type != "cpu":
        return torch.empty(length, dtype=dtype, device=device)
    memory = _found(size)
    lease = memory[:]  # the tensor's storage holds this array and nobody else does: it ends with the last view
    weakref.finalize(lease, _spare.append, memory).atexit = False
    return torch.from_numpy(lease).view(dtype)


def _found(size: int) -> npt.NDArray[np.uint8]:
    """The last spare block of just this size, or a new one. Single steps only: other threads use the deque too."""
    for _ in range(len(_spare)):
        try:
            memory = _spare.pop()
        except IndexError:  # another thread was quicker
            break
        if memory.nbytes == size:
            return memory
        _spare.appendleft(memory)
    return _new(size)


def _new(size: int) -> npt.NDArray[np.uint8]:
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return np.empty(size, np.uint8)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, np.uint8)
