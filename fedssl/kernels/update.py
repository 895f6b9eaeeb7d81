"""An optimizer's update of a flat row, in one pass over memory."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _sgd_kernel(row, buffer, grad, rate, decay, momentum, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = i < n
    value = tl.load(row + i, mask=keep)
    moved = tl.load(buffer + i, mask=keep) * momentum + (tl.load(grad + i, mask=keep) + decay * value)
    tl.store(buffer + i, moved, mask=keep)
    tl.store(row + i, value - tl.load(rate) * moved, mask=keep)


def sgd(row: Tensor, buffer: Tensor, grad: Tensor, rate: Tensor, decay: float, momentum: float) -> None:
    """buffer ← momentum·buffer + grad + decay·row; row ← row − rate·buffer. All (n,) float32 but the 0-d rate."""
    n = row.numel()
    _sgd_kernel[(triton.cdiv(n, BLOCK),)](row, buffer, grad, rate, decay, momentum, n, BLOCK, num_warps=8)
