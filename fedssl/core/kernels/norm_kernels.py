"""Triton kernels of batch normalisation; `norm` launches them.

Activations are (rows, channels) in memory: rows of a batch, or pixels of images whose channels are
innermost. The rows are divided into GROUPS groups with separate statistics. A reduction cuts each
group into SPLITS blocks of rows and writes partial sums (GROUPS · SPLITS, 2, C), which another
kernel adds up.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def moments_kernel(
    x, partial, rows, rows_per_program,
    C: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the sums and sums of squares of `rows_per_program` rows.

    They are relative to the first row of all: a mean far from zero would otherwise cancel the
    variance.
    """
    program = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    inside = c < C
    base = x + (program // SPLITS).to(tl.int64) * rows * C
    pivot = tl.load(x + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    first = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    second = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    start = program % SPLITS * rows_per_program
    last = tl.minimum(start + rows_per_program, rows)
    for row in tl.range(start, last, BLOCK_ROWS, num_stages=STAGES):
        r = row + tl.arange(0, BLOCK_ROWS)
        keep = (r < last)[:, None] & inside[None, :]
        v = tl.load(base + r[:, None] * C + c[None, :], mask=keep, other=0.0).to(tl.float32)
        v = tl.where(keep, v - pivot, 0.0)
        first += v
        second += v * v
    out = partial + program * 2 * C + c
    tl.store(out, tl.sum(first, 0), mask=inside)
    tl.store(out + C, tl.sum(second, 0), mask=inside)


@triton.jit
def _add_partial_sums(
    partial, c, inside,
    C: tl.constexpr, SPLITS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, BLOCK_SPLITS: tl.constexpr,
):  # fmt: skip
    """Return the sums over all splits of both kinds of partial sums, each (BLOCK_COLUMNS,)."""
    first = tl.zeros((BLOCK_SPLITS, BLOCK_COLUMNS), tl.float32)
    second = tl.zeros((BLOCK_SPLITS, BLOCK_COLUMNS), tl.float32)
    for start in tl.static_range(0, SPLITS, BLOCK_SPLITS):
        s = start + tl.arange(0, BLOCK_SPLITS)
        keep = (s < SPLITS)[:, None] & inside[None, :]
        at = partial + s[:, None] * 2 * C + c[None, :]
        first += tl.load(at, mask=keep, other=0.0)
        second += tl.load(at + C, mask=keep, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def statistics_kernel(
    x, partial, mean, inv_std, running_mean, running_var, rows, eps, momentum,
    C: tl.constexpr, GROUPS: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr, BLOCK_SPLITS: tl.constexpr,
):  # fmt: skip
    """Write the mean and inverse standard deviation (GROUPS, C) of each group, and move the running
    statistics once per group, in order."""
    c = tl.program_id(0) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    inside = c < C
    pivot = tl.load(x + c, mask=inside, other=0.0).to(tl.float32)
    moved_mean = tl.load(running_mean + c, mask=inside, other=0.0)
    moved_var = tl.load(running_var + c, mask=inside, other=0.0)
    for g in tl.static_range(GROUPS):
        first, second = _add_partial_sums(
            partial + g * SPLITS * 2 * C, c, inside, C, SPLITS, BLOCK_COLUMNS, BLOCK_SPLITS
        )
        first = first / rows
        second = second / rows
        var = tl.maximum(second - first * first, 0.0)
        tl.store(mean + g * C + c, pivot + first, mask=inside)
        tl.store(inv_std + g * C + c, 1.0 / tl.sqrt_rn(var + eps), mask=inside)
        moved_mean += momentum * (pivot + first - moved_mean)
        moved_var += momentum * (var * (rows / (rows - 1.0)) - moved_var)
    tl.store(running_mean + c, moved_mean, mask=inside)
    tl.store(running_var + c, moved_var, mask=inside)


@triton.jit
def apply_kernel(
    x, residual, y, mean, inv_std, weight, bias, rows,
    C: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write y = (x − mean) · weight / deviation + bias, `+ residual`, ReLU."""
    group = tl.program_id(1)
    c = tl.program_id(2) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    inside = c < C
    r = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    keep = (r < rows)[:, None] & inside[None, :]
    at = group.to(tl.int64) * rows * C + r[:, None] * C + c[None, :]
    scale = tl.load(inv_std + group * C + c, mask=inside) * tl.load(weight + c, mask=inside)
    v = tl.load(x + at, mask=keep).to(tl.float32)
    v = v - tl.load(mean + group * C + c, mask=inside)[None, :]
    v = v * scale[None, :] + tl.load(bias + c, mask=inside)[None, :]
    if RESIDUAL:
        v += tl.load(residual + at, mask=keep).to(tl.float32)
    if RELU:
        v = tl.maximum(v, 0.0)
    tl.store(y + at, v.to(y.dtype.element_ty), mask=keep)


@triton.jit
def gradient_sums_kernel(
    dy, dy2, x, y, masked, partial, mean, inv_std, weight, bias, rows, rows_per_program,
    C: tl.constexpr, SPLITS: tl.constexpr, RESIDUAL: tl.constexpr, TWO: tl.constexpr,
    RELU: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write Σg and Σg·x̂ of `rows_per_program` rows; g is dy (+ dy2), masked by the ReLU. Write g
    to `masked` where it is needed again: with a residual, whose gradient it is, and where it is the
    sum of two gradients."""
    program = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    inside = c < C
    group = program // SPLITS
    base = group.to(tl.int64) * rows * C
    centre = tl.load(mean + group * C + c, mask=inside, other=0.0)[None, :]
    spread = tl.load(inv_std + group * C + c, mask=inside, other=0.0)[None, :]
    scale = spread * tl.load(weight + c, mask=inside, other=0.0)[None, :]
    shift = tl.load(bias + c, mask=inside, other=0.0)[None, :]
    first = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    second = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    start = program % SPLITS * rows_per_program
    last = tl.minimum(start + rows_per_program, rows)
    for row in tl.range(start, last, BLOCK_ROWS, num_stages=STAGES):
        r = row + tl.arange(0, BLOCK_ROWS)
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
def parameter_gradients_kernel(
    partial, means, dweight, dbias, rows,
    C: tl.constexpr, GROUPS: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr, BLOCK_SPLITS: tl.constexpr,
):  # fmt: skip
    """Write mean(g) and mean(g·x̂) (GROUPS, 2, C) per group and, over all groups, the gradients of
    weight and bias."""
    c = tl.program_id(0) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    inside = c < C
    all_first = tl.zeros((BLOCK_COLUMNS,), tl.float32)
    all_second = tl.zeros((BLOCK_COLUMNS,), tl.float32)
    for g in tl.static_range(GROUPS):
        first, second = _add_partial_sums(
            partial + g * SPLITS * 2 * C, c, inside, C, SPLITS, BLOCK_COLUMNS, BLOCK_SPLITS
        )
        tl.store(means + (2 * g) * C + c, first / rows, mask=inside)
        tl.store(means + (2 * g + 1) * C + c, second / rows, mask=inside)
        all_first += first
        all_second += second
    tl.store(dbias + c, all_first, mask=inside)
    tl.store(dweight + c, all_second, mask=inside)


@triton.jit
def input_gradient_kernel(
    g, x, dx, mean, inv_std, weight, bias, means, rows,
    C: tl.constexpr, RELU: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write dx = (g − mean(g) − x̂·mean(g·x̂)) · weight / deviation."""
    group = tl.program_id(1)
    c = tl.program_id(2) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    inside = c < C
    r = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    keep = (r < rows)[:, None] & inside[None, :]
    at = group.to(tl.int64) * rows * C + r[:, None] * C + c[None, :]
    spread = tl.load(inv_std + group * C + c, mask=inside)[None, :]
    scale = spread * tl.load(weight + c, mask=inside)[None, :]
    v = tl.load(x + at, mask=keep).to(tl.float32)
    v = v - tl.load(mean + group * C + c, mask=inside)[None, :]
    d = tl.load(g + at, mask=keep).to(tl.float32)
    if RELU:
        d = tl.where(v * scale + tl.load(bias + c, mask=inside)[None, :] > 0, d, 0.0)
    mean_g = tl.load(means + (2 * group) * C + c, mask=inside)[None, :]
    mean_gx = tl.load(means + (2 * group + 1) * C + c, mask=inside)[None, :]
    tl.store(
        dx + at,
        ((d - mean_g - v * spread * mean_gx) * scale).to(dx.dtype.element_ty),
        mask=keep,
    )
