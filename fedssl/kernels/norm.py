"""Batch normalisation for CUDA in as few passes over memory as it takes, with addition and ReLU in the same pass.

A network's convolutions are fast; what surrounds them reads and writes each activation again and again. Here one
normalisation reads its input twice and writes its output once, forward; backward it reads gradient and input twice and
writes the gradient once. Statistics are taken per group of rows, of all groups in one launch.

Every sum runs in a fixed order: partial sums per block of rows, added up by whichever program finishes last. Equal
inputs give equal bits. Activations are (rows, channels) in memory: rows of a batch, or pixels of images whose channels
lie innermost.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 528  # of a reduction: four for each multiprocessor of a large GPU
ROWS, COLUMNS = 64, 64  # of a block
WARPS = 4


@triton.jit
def _moments_kernel(
    x, partial, ticket, mean, inv, running_mean, running_var,
    rows, per, eps, momentum,
    C: tl.constexpr, G: tl.constexpr, S: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Mean and inverse deviation (G, C) of each group's `rows` × C, relative to the group's first row: no cancellation."""
    program, c = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    group, split = program // S, program % S
    base = x + group.to(tl.int64) * rows * C
    pivot = tl.load(base + c, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BR, BC), tl.float32)
    square = tl.zeros((BR, BC), tl.float32)
    last = tl.minimum((split + 1) * per, rows)
    for start in range(split * per, last, BR):
        r = start + tl.arange(0, BR)
        keep = (r < last)[:, None] & inside[None, :]
        v = tl.load(base + r[:, None] * C + c[None, :], mask=keep, other=0.0).to(tl.float32)
        v = tl.where(keep, v - pivot[None, :], 0.0)
        total += v
        square += v * v
    out = partial + program * 2 * C + c
    tl.store(out, tl.sum(total, 0), mask=inside)
    tl.store(out + C, tl.sum(square, 0), mask=inside)
    tl.debug_barrier()
    if tl.atomic_add(ticket + tl.program_id(1), 1, sem="acq_rel") == G * S - 1:
        tl.store(ticket + tl.program_id(1), 0)
        moved_mean = tl.load(running_mean + c, mask=inside, other=0.0)
        moved_var = tl.load(running_var + c, mask=inside, other=0.0)
        for g in tl.static_range(G):
            first, second = _add_up(partial + g * S * 2 * C, c, inside, C, S, BC, BS)
            first, second = first / rows, second / rows
            pivot = tl.load(x + tl.cast(g, tl.int64) * rows * C + c, mask=inside, other=0.0).to(tl.float32)
            var = second - first * first
            tl.store(mean + g * C + c, pivot + first, mask=inside)
            tl.store(inv + g * C + c, 1.0 / tl.sqrt_rn(var + eps), mask=inside)
            moved_mean += momentum * (pivot + first - moved_mean)
            moved_var += momentum * (var * (rows / (rows - 1.0)) - moved_var)
        tl.store(running_mean + c, moved_mean, mask=inside)
        tl.store(running_var + c, moved_var, mask=inside)


@triton.jit
def _add_up(partial, c, inside, C: tl.constexpr, S: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr):
    """The sums over S programs of the two kinds of partial sums, each (BC,)."""
    first = tl.zeros((BS, BC), tl.float32)
    second = tl.zeros((BS, BC), tl.float32)
    for start in range(0, S, BS):
        s = start + tl.arange(0, BS)
        keep = (s < S)[:, None] & inside[None, :]
        at = partial + s[:, None] * 2 * C + c[None, :]
        first += tl.load(at, mask=keep, other=0.0, cache_modifier=".cg")
        second += tl.load(at + C, mask=keep, other=0.0, cache_modifier=".cg")
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def _apply_kernel(
    x, residual, y, mean, inv, weight, bias, rows,
    C: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    group, c = tl.program_id(1), tl.program_id(2) * BC + tl.arange(0, BC)
    inside = c < C
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    keep = (r < rows)[:, None] & inside[None, :]
    at = group.to(tl.int64) * rows * C + r[:, None] * C + c[None, :]
    scale = tl.load(inv + group * C + c, mask=inside) * tl.load(weight + c, mask=inside)
    v = tl.load(x + at, mask=keep).to(tl.float32) - tl.load(mean + group * C + c, mask=inside)[None, :]
    v = v * scale[None, :] + tl.load(bias + c, mask=inside)[None, :]
    if RESIDUAL:
        v += tl.load(residual + at, mask=keep).to(tl.float32)
    if RELU:
        v = tl.maximum(v, 0.0)
    tl.store(y + at, v.to(y.dtype.element_ty), mask=keep)


@triton.jit
def _sums_kernel(
    dy, x, y, masked, partial, ticket, mean, inv, weight, bias, sums, dweight, dbias,
    rows, per,
    C: tl.constexpr, G: tl.constexpr, S: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Σg and Σg·x̂ per group and channel, where g is dy behind the ReLU; with a residual g is written, its gradient."""
    program, c = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    group, split = program // S, program % S
    base = group.to(tl.int64) * rows * C
    centre = tl.load(mean + group * C + c, mask=inside, other=0.0)[None, :]
    spread = tl.load(inv + group * C + c, mask=inside, other=0.0)[None, :]
    scale = spread * tl.load(weight + c, mask=inside, other=0.0)[None, :]
    shift = tl.load(bias + c, mask=inside, other=0.0)[None, :]
    first = tl.zeros((BR, BC), tl.float32)
    second = tl.zeros((BR, BC), tl.float32)
    last = tl.minimum((split + 1) * per, rows)
    for start in range(split * per, last, BR):
        r = start + tl.arange(0, BR)
        keep = (r < last)[:, None] & inside[None, :]
        at = base + r[:, None] * C + c[None, :]
        v = tl.load(x + at, mask=keep, other=0.0).to(tl.float32) - centre
        g = tl.load(dy + at, mask=keep, other=0.0).to(tl.float32)
        if RESIDUAL:
            g = tl.where(tl.load(y + at, mask=keep, other=0.0).to(tl.float32) > 0, g, 0.0)
            tl.store(masked + at, g.to(masked.dtype.element_ty), mask=keep)
        elif RELU:
            g = tl.where(v * scale + shift > 0, g, 0.0)
        first += g
        second += g * (v * spread)
    out = partial + program * 2 * C + c
    tl.store(out, tl.sum(first, 0), mask=inside)
    tl.store(out + C, tl.sum(second, 0), mask=inside)
    tl.debug_barrier()
    if tl.atomic_add(ticket + tl.program_id(1), 1, sem="acq_rel") == G * S - 1:
        tl.store(ticket + tl.program_id(1), 0)
        all_first = tl.zeros((BC,), tl.float32)
        all_second = tl.zeros((BC,), tl.float32)
        for g in tl.static_range(G):
            one, two = _add_up(partial + g * S * 2 * C, c, inside, C, S, BC, BS)
            tl.store(sums + (2 * g) * C + c, one / rows, mask=inside)
            tl.store(sums + (2 * g + 1) * C + c, two / rows, mask=inside)
            all_first += one
            all_second += two
        tl.store(dbias + c, all_first, mask=inside)
        tl.store(dweight + c, all_second, mask=inside)


@triton.jit
def _input_kernel(
    g, x, dx, mean, inv, weight, bias, sums, rows,
    C: tl.constexpr, RELU: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dx = (g − mean(g) − x̂·mean(g·x̂)) · weight / deviation."""
    group, c = tl.program_id(1), tl.program_id(2) * BC + tl.arange(0, BC)
    inside = c < C
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    keep = (r < rows)[:, None] & inside[None, :]
    at = group.to(tl.int64) * rows * C + r[:, None] * C + c[None, :]
    spread = tl.load(inv + group * C + c, mask=inside)[None, :]
    scale = spread * tl.load(weight + c, mask=inside)[None, :]
    v = tl.load(x + at, mask=keep).to(tl.float32) - tl.load(mean + group * C + c, mask=inside)[None, :]
    d = tl.load(g + at, mask=keep).to(tl.float32)
    if RELU:
        d = tl.where(v * scale + tl.load(bias + c, mask=inside)[None, :] > 0, d, 0.0)
    one = tl.load(sums + (2 * group) * C + c, mask=inside)[None, :]
    two = tl.load(sums + (2 * group + 1) * C + c, mask=inside)[None, :]
    tl.store(dx + at, ((d - one - v * spread * two) * scale).to(dx.dtype.element_ty), mask=keep)


class _Shape:
    """How (groups × rows, channels) is cut into programs."""

    def __init__(self, x: Tensor, groups: int) -> None:
        self.c, self.g = x.shape[1], groups
        self.rows = x.numel() // (self.c * groups)
        self.bc = min(COLUMNS, triton.next_power_of_2(self.c))
        self.br = ROWS * COLUMNS // self.bc
        self.blocks = triton.cdiv(self.c, self.bc)
        splits = max(1, min(triton.cdiv(self.rows, self.br), PROGRAMS // (groups * self.blocks)))
        self.per = triton.cdiv(triton.cdiv(self.rows, splits), self.br) * self.br
        self.s = triton.cdiv(self.rows, self.per)
        self.bs = min(64, triton.next_power_of_2(self.s))

    @property
    def reduce(self) -> tuple[int, int]:
        return self.g * self.s, self.blocks

    @property
    def map(self) -> tuple[int, int, int]:
        return triton.cdiv(self.rows, self.br), self.g, self.blocks


def _inner(x: Tensor) -> Tensor:
    """The same tensor with its channels innermost in memory."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, running_mean: Tensor,
        running_var: Tensor, ticket: Tensor, groups: int, momentum: float, eps: float, relu: bool,
    ) -> Tensor:  # fmt: skip
        x = _inner(x)
        residual = None if residual is None else _inner(residual.to(x.dtype))
        s = _Shape(x, groups)
        mean, inv = x.new_empty((2, groups, s.c), dtype=torch.float32).unbind()
        partial = x.new_empty((groups * s.s, 2, s.c), dtype=torch.float32)
        _moments_kernel[s.reduce](
            x, partial, ticket, mean, inv, running_mean, running_var, s.rows, s.per, eps, momentum,
            s.c, groups, s.s, s.br, s.bc, s.bs, num_warps=WARPS,
        )  # fmt: skip
        y = torch.empty_like(x)
        _apply_kernel[s.map](
            x, residual, y, mean, inv, weight, bias, s.rows,
            s.c, residual is not None, relu, s.br, s.bc, num_warps=WARPS,
        )  # fmt: skip
        ctx.save_for_backward(x, y if residual is not None else None, weight, bias, mean, inv, ticket)
        ctx.groups, ctx.relu = groups, relu
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, y, weight, bias, mean, inv, ticket = ctx.saved_tensors
        dy, s, residual = _inner(dy), _Shape(x, ctx.groups), y is not None
        partial = x.new_empty((s.g * s.s, 2, s.c), dtype=torch.float32)
        sums = x.new_empty((s.g, 2, s.c), dtype=torch.float32)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        masked = torch.empty_like(x) if residual else None
        _sums_kernel[s.reduce](
            dy, x, y, masked, partial, ticket, mean, inv, weight, bias, sums, dweight, dbias, s.rows, s.per,
            s.c, s.g, s.s, residual, ctx.relu, s.br, s.bc, s.bs, num_warps=WARPS,
        )  # fmt: skip
        dx = torch.empty_like(x)
        _input_kernel[s.map](
            masked if residual else dy, x, dx, mean, inv, weight, bias, sums, s.rows,
            s.c, ctx.relu and not residual, s.br, s.bc, num_warps=WARPS,
        )  # fmt: skip
        return dx, masked, dweight, dbias, None, None, None, None, None, None, None


def normalise(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor,
    ticket: Tensor, groups: int, momentum: float, eps: float, relu: bool,
) -> Tensor:  # fmt: skip
    """Training-mode BatchNorm of (n, C) or (n, C, h, w), statistics per group of n/groups, then `+ residual`, then ReLU.

    Running statistics move in place, once per group. `ticket` is int32 zeros, one for each 64 channels, and zeros again
    afterwards; two calls at the same time need two. A residual comes with `relu` only.
    """
    out: Tensor = _Normalise.apply(
        x, residual, weight, bias, running_mean, running_var, ticket, groups, momentum, eps, relu
    )
    return out
