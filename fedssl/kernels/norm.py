"""Batch normalisation for CUDA in as few passes over memory as it takes, with addition and ReLU in the same pass.

A network's convolutions are fast; what surrounds them reads and writes each activation again and again. Here one
normalisation reads its input twice and writes its output once, forward; backward it reads gradient and input twice and
writes the gradient once. Statistics are taken per group of rows, of all groups in one launch.

Every sum runs in a fixed order, first within blocks of rows and then over blocks: equal inputs give equal bits.
Activations are (rows, channels) in memory: rows of a batch, or pixels of images whose channels lie innermost.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 4
MAP_ROWS, MAP_COLUMNS = 32, 128  # of a block that is written
REDUCE_ROWS, REDUCE_COLUMNS = 64, 64  # of one that is added up: 64 channels in bfloat16 are a line of the cache
PROGRAMS = 528  # of a reduction, at most: four for each multiprocessor of a large GPU
FINISH = 16  # channels a program adds up the blocks' sums of
STAGES = 3  # tiles on their way from memory while one is added up


@triton.jit
def _moments_kernel(
    x, partial, rows, per,
    C: tl.constexpr, S: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums and sums of squares of `per` rows, relative to the first row of all: a mean far from zero would else swallow
    the variance."""
    program, c = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    base = x + (program // S).to(tl.int64) * rows * C
    pivot = tl.load(x + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    first = tl.zeros((BR, BC), tl.float32)
    second = tl.zeros((BR, BC), tl.float32)
    start = program % S * per
    last = tl.minimum(start + per, rows)
    for row in tl.range(start, last, BR, num_stages=STAGES):
        r = row + tl.arange(0, BR)
        keep = (r < last)[:, None] & inside[None, :]
        v = tl.load(base + r[:, None] * C + c[None, :], mask=keep, other=0.0).to(tl.float32)
        v = tl.where(keep, v - pivot, 0.0)
        first += v
        second += v * v
    out = partial + program * 2 * C + c
    tl.store(out, tl.sum(first, 0), mask=inside)
    tl.store(out + C, tl.sum(second, 0), mask=inside)


@triton.jit
def _add_up(partial, c, inside, C: tl.constexpr, S: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr):
    """The sums over S blocks of both kinds of partial sums, each (BC,)."""
    first = tl.zeros((BS, BC), tl.float32)
    second = tl.zeros((BS, BC), tl.float32)
    for start in tl.static_range(0, S, BS):
        s = start + tl.arange(0, BS)
        keep = (s < S)[:, None] & inside[None, :]
        at = partial + s[:, None] * 2 * C + c[None, :]
        first += tl.load(at, mask=keep, other=0.0)
        second += tl.load(at + C, mask=keep, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def _statistics_kernel(
    x, partial, mean, inv, running_mean, running_var, rows, eps, momentum,
    C: tl.constexpr, G: tl.constexpr, S: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Mean and inverse deviation (G, C) of each group; running statistics move once per group, one after the other."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = c < C
    pivot = tl.load(x + c, mask=inside, other=0.0).to(tl.float32)
    moved_mean = tl.load(running_mean + c, mask=inside, other=0.0)
    moved_var = tl.load(running_var + c, mask=inside, other=0.0)
    for g in tl.static_range(G):
        first, second = _add_up(partial + g * S * 2 * C, c, inside, C, S, BC, BS)
        first, second = first / rows, second / rows
        var = tl.maximum(second - first * first, 0.0)
        tl.store(mean + g * C + c, pivot + first, mask=inside)
        tl.store(inv + g * C + c, 1.0 / tl.sqrt_rn(var + eps), mask=inside)
        moved_mean += momentum * (pivot + first - moved_mean)
        moved_var += momentum * (var * (rows / (rows - 1.0)) - moved_var)
    tl.store(running_mean + c, moved_mean, mask=inside)
    tl.store(running_var + c, moved_var, mask=inside)


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
    dy, dy2, x, y, masked, partial, mean, inv, weight, bias, rows, per,
    C: tl.constexpr, S: tl.constexpr, RESIDUAL: tl.constexpr, TWO: tl.constexpr, RELU: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Σg and Σg·x̂ of `per` rows, where g is dy (+ dy2) behind the ReLU. g is written where somebody else needs it: with
    a residual, whose gradient it is, and where it is the sum of two."""
    program, c = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    group = program // S
    base = group.to(tl.int64) * rows * C
    centre = tl.load(mean + group * C + c, mask=inside, other=0.0)[None, :]
    spread = tl.load(inv + group * C + c, mask=inside, other=0.0)[None, :]
    scale = spread * tl.load(weight + c, mask=inside, other=0.0)[None, :]
    shift = tl.load(bias + c, mask=inside, other=0.0)[None, :]
    first = tl.zeros((BR, BC), tl.float32)
    second = tl.zeros((BR, BC), tl.float32)
    start = program % S * per
    last = tl.minimum(start + per, rows)
    for row in tl.range(start, last, BR, num_stages=STAGES):
        r = row + tl.arange(0, BR)
        keep = (r < last)[:, None] & inside[None, :]
        at = base + r[:, None] * C + c[None, :]
        v = tl.load(x + at, mask=keep, other=0.0).to(tl.float32) - centre
        g = tl.load(dy + at, mask=keep, other=0.0).to(tl.float32)
        if TWO:
            g += tl.load(dy2 + at, mask=keep, other=0.0).to(tl.float32)
        if RESIDUAL:
            g = tl.where(tl.load(y + at, mask=keep, other=0.0).to(tl.float32) > 0, g, 0.0)
        elif RELU:
            g = tl.where(v * scale + shift > 0, g, 0.0)
        if RESIDUAL or TWO:
            tl.store(masked + at, g.to(masked.dtype.element_ty), mask=keep)
        first += g
        second += g * (v * spread)
    out = partial + program * 2 * C + c
    tl.store(out, tl.sum(first, 0), mask=inside)
    tl.store(out + C, tl.sum(second, 0), mask=inside)


@triton.jit
def _gradients_kernel(
    partial, sums, dweight, dbias, rows,
    C: tl.constexpr, G: tl.constexpr, S: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """mean(g) and mean(g·x̂) (G, 2, C) per group; over all groups, the gradients of weight and bias."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = c < C
    all_first = tl.zeros((BC,), tl.float32)
    all_second = tl.zeros((BC,), tl.float32)
    for g in tl.static_range(G):
        first, second = _add_up(partial + g * S * 2 * C, c, inside, C, S, BC, BS)
        tl.store(sums + (2 * g) * C + c, first / rows, mask=inside)
        tl.store(sums + (2 * g + 1) * C + c, second / rows, mask=inside)
        all_first += first
        all_second += second
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
        widest = triton.next_power_of_2(self.c)
        self.map_columns, self.reduce_columns = min(MAP_COLUMNS, widest), min(REDUCE_COLUMNS, widest)
        self.map_rows = MAP_ROWS * MAP_COLUMNS // self.map_columns
        self.reduce_rows = REDUCE_ROWS * REDUCE_COLUMNS // self.reduce_columns
        blocks, tiles = triton.cdiv(self.c, self.reduce_columns), triton.cdiv(self.rows, self.reduce_rows)
        self.per = triton.cdiv(tiles, max(1, min(tiles, PROGRAMS // (groups * blocks)))) * self.reduce_rows
        self.s = triton.cdiv(self.rows, self.per)
        self.reduce = groups * self.s, blocks
        self.map = triton.cdiv(self.rows, self.map_rows), groups, triton.cdiv(self.c, self.map_columns)
        self.finish = (triton.cdiv(self.c, FINISH),)
        self.bs = min(128, triton.next_power_of_2(self.s))


def _inner(x: Tensor) -> Tensor:
    """The same tensor with its channels innermost in memory."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


class _Normalise(torch.autograd.Function):
    """The result is returned twice: two readers' gradients are then added here, in passing, and not by a kernel of
    autograd's."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, running_mean: Tensor,
        running_var: Tensor, groups: int, momentum: float, eps: float, relu: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x = _inner(x)
        residual = None if residual is None else _inner(residual.to(x.dtype))
        s = _Shape(x, groups)
        mean, inv = x.new_empty((2, groups, s.c), dtype=torch.float32).unbind()
        y = torch.empty_like(x)
        ctx.save_for_backward(x, y if residual is not None else None, weight, bias, mean, inv)
        ctx.set_materialize_grads(False)
        ctx.groups, ctx.relu = groups, relu
        partial = x.new_empty((groups * s.s, 2, s.c), dtype=torch.float32)
        _moments_kernel[s.reduce](
            x, partial, s.rows, s.per, s.c, s.s, s.reduce_rows, s.reduce_columns, STAGES, num_warps=WARPS
        )
        _statistics_kernel[s.finish](
            x, partial, mean, inv, running_mean, running_var, s.rows, eps, momentum,
            s.c, groups, s.s, FINISH, s.bs, num_warps=WARPS,
        )  # fmt: skip
        _apply_kernel[s.map](
            x, residual, y, mean, inv, weight, bias, s.rows,
            s.c, residual is not None, relu, s.map_rows, s.map_columns, num_warps=WARPS,
        )  # fmt: skip
        return y, y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dy2: Tensor | None) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, mean, inv = ctx.saved_tensors
        grads = [_inner(d) for d in (dy, dy2) if d is not None]
        if not grads:
            return (None,) * 10
        s, residual, two = _Shape(x, ctx.groups), y is not None, len(grads) == 2
        dweight, dbias, dx = torch.empty_like(weight), torch.empty_like(bias), torch.empty_like(x)
        masked = torch.empty_like(x) if residual or two else None
        partial = x.new_empty((s.g * s.s, 2, s.c), dtype=torch.float32)
        sums = x.new_empty((s.g, 2, s.c), dtype=torch.float32)
        _sums_kernel[s.reduce](
            grads[0], grads[-1], x, y, masked, partial, mean, inv, weight, bias, s.rows, s.per,
            s.c, s.s, residual, two, ctx.relu, s.reduce_rows, s.reduce_columns, STAGES, num_warps=WARPS,
        )  # fmt: skip
        _gradients_kernel[s.finish](partial, sums, dweight, dbias, s.rows, s.c, s.g, s.s, FINISH, s.bs, num_warps=WARPS)
        _input_kernel[s.map](
            grads[0] if masked is None else masked, x, dx, mean, inv, weight, bias, sums, s.rows,
            s.c, ctx.relu and masked is None, s.map_rows, s.map_columns, num_warps=WARPS,
        )  # fmt: skip
        return dx, masked if residual else None, dweight, dbias, None, None, None, None, None, None


def normalise(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor,
    groups: int, momentum: float, eps: float, relu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Training-mode BatchNorm of (n, C) or (n, C, h, w), statistics per group of n/groups, `+ residual`, ReLU.

    The result comes twice, for two readers. Running statistics move in place, once per group. A residual comes with
    `relu` only.
    """
    both: tuple[Tensor, Tensor] = _Normalise.apply(
        x, residual, weight, bias, running_mean, running_var, groups, momentum, eps, relu
    )
    return both
