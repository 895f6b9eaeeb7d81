"""Updates of flat rows in one pass over memory, each with the bfloat16 copy for the next step."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
WARPS = 8


@triton.jit
def _sgd_kernel(
    row, low, buffer, grad, lr, decay, momentum, target, target_low, share, n,
    LOW: tl.constexpr, FOLLOW: tl.constexpr, FOLLOW_LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update BLOCK elements; see `sgd`."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = i < n
    value = tl.load(row + i, mask=keep)
    slope = tl.load(grad + i, mask=keep).to(tl.float32) + decay * value
    moved = tl.load(buffer + i, mask=keep) * momentum + slope
    value -= tl.load(lr) * moved
    if FOLLOW:  # before the other stores, so that no load waits for a store
        behind = tl.load(target + i, mask=keep)
        behind += share * (value - behind)
        tl.store(target + i, behind, mask=keep)
        if FOLLOW_LOW:
            tl.store(target_low + i, behind.to(tl.bfloat16), mask=keep)
    tl.store(buffer + i, moved, mask=keep)
    tl.store(row + i, value, mask=keep)
    if LOW:
        tl.store(low + i, value.to(tl.bfloat16), mask=keep)


@triton.jit
def _lerp_kernel(row, low, other, share, n, LOW: tl.constexpr, BLOCK: tl.constexpr):
    """Update BLOCK elements; see `lerp`."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = i < n
    value = tl.load(row + i, mask=keep)
    value += share * (tl.load(other + i, mask=keep) - value)
    tl.store(row + i, value, mask=keep)
    if LOW:
        tl.store(low + i, value.to(tl.bfloat16), mask=keep)


def sgd(
    row: Tensor,
    low: Tensor | None,
    buffer: Tensor,
    grad: Tensor,
    lr: Tensor,
    decay: float,
    momentum: float,
    target: Tensor | None = None,
    target_low: Tensor | None = None,
    share: float = 0.0,
) -> None:
    """Update a row in place by SGD with momentum, and a target network that follows it.

    buffer ← momentum·buffer + grad + decay·row; row ← row − lr·buffer; then, if there is a
    target, target ← (1 − share)·target + share·row. `low` and `target_low` receive bfloat16 copies.
    All (n,) float32 except for the 0-d `lr`; the gradient may be bfloat16.
    """
    n = row.numel()
    _sgd_kernel[(triton.cdiv(n, BLOCK),)](
        row, low, buffer, grad, lr, decay, momentum, target, target_low, share, n,
        LOW=low is not None, FOLLOW=target is not None, FOLLOW_LOW=target_low is not None,
        BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip


def lerp(row: Tensor, low: Tensor | None, other: Tensor, share: float) -> None:
    """Set row ← (1 − share)·row + share·other, (n,) float32; `low` receives a bfloat16 copy."""
    n = row.numel()
    _lerp_kernel[(triton.cdiv(n, BLOCK),)](
        row, low, other, share, n, LOW=low is not None, BLOCK=BLOCK, num_warps=WARPS
    )
