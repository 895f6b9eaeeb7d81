"""Rows whose memory is reused.

A model's row takes tens of megabytes, and malloc maps a block of that size anew each time:
touching its fresh pages takes several times longer than filling it. torch caches freed blocks on
CUDA; on a CPU this module does, and asks for huge pages, which make a pass over a long row a
quarter faster.
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

MIN_BYTES = 1 << 18  # malloc reuses smaller blocks
_spare: deque[npt.NDArray[np.uint8]] = deque(maxlen=8)  # a ninth block frees the oldest


def row(
    length: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Tensor:
    """Return a new, uninitialized tensor (length,).

    Its memory is reused once the last tensor that shares it is gone.
    """
    size = length * dtype.itemsize
    if size < MIN_BYTES or torch.device(device).type != "cpu":
        return torch.empty(length, dtype=dtype, device=device)
    memory = _take(size)
    # Only the tensor's storage refers to this array, so that it ends with the last view.
    lease = memory[:]
    weakref.finalize(lease, _spare.append, memory).atexit = False
    return torch.from_numpy(lease).view(dtype)


def _take(size: int) -> npt.NDArray[np.uint8]:
    """Return the newest spare block of exactly this size, or a new one.

    Uses atomic operations only, since other threads use the deque too.
    """
    for _ in range(len(_spare)):
        try:
            memory = _spare.pop()
        except IndexError:  # another thread was quicker
            break
        if memory.nbytes == size:
            return memory
        _spare.appendleft(memory)
    return _allocate(size)


def _allocate(size: int) -> npt.NDArray[np.uint8]:
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return np.empty(size, np.uint8)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, np.uint8)
