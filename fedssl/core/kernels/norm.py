"""Batch normalisation for CUDA in few passes over memory, with addition and ReLU in the same pass.

A network's convolutions are fast; the operations around them read and write each activation again
and again. Here the forward pass of one normalisation reads its input twice and writes its output
once; the backward pass reads gradient and input twice and writes the gradient once. Statistics are
computed per group of rows, for all groups in one launch.

Every sum has a fixed order, first within blocks of rows and then over blocks: equal inputs give
equal bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from fedssl.core.kernels import norm_kernels as kernels

WARPS = 4
MAP_ROWS = 32  # of a block that is written
MAP_COLUMNS = 128
REDUCE_ROWS = 64  # of a block that is added up
REDUCE_COLUMNS = 64  # channels in bfloat16: one cache line
PROGRAMS = 528  # of a reduction, at most: four for each multiprocessor of a large GPU
FINISH = 16  # channels per program that adds up the sums of blocks
STAGES = 3  # tiles that are loaded while one is added up


class _Grid:
    """The division of (groups × rows, channels) into programs."""

    def __init__(self, x: Tensor, groups: int) -> None:
        self.channels = x.shape[1]
        self.groups = groups
        self.rows = x.numel() // (self.channels * groups)
        widest = triton.next_power_of_2(self.channels)
        self.map_columns = min(MAP_COLUMNS, widest)
        self.map_rows = MAP_ROWS * MAP_COLUMNS // self.map_columns
        self.reduce_columns = min(REDUCE_COLUMNS, widest)
        self.reduce_rows = REDUCE_ROWS * REDUCE_COLUMNS // self.reduce_columns

        column_blocks = triton.cdiv(self.channels, self.reduce_columns)
        tiles = triton.cdiv(self.rows, self.reduce_rows)
        programs = max(1, min(tiles, PROGRAMS // (groups * column_blocks)))
        self.rows_per_program = triton.cdiv(tiles, programs) * self.reduce_rows
        self.splits = triton.cdiv(self.rows, self.rows_per_program)
        self.block_splits = min(128, triton.next_power_of_2(self.splits))

        # The grids of the launches that add up blocks, finish the sums and write activations.
        self.reduce = (groups * self.splits, column_blocks)
        self.finish = (triton.cdiv(self.channels, FINISH),)
        self.map = (
            triton.cdiv(self.rows, self.map_rows),
            groups,
            triton.cdiv(self.channels, self.map_columns),
        )

    def new_partial_sums(self, x: Tensor) -> Tensor:
        """Return an uninitialized tensor for both kinds of partial sums, on the device of x."""
        shape = (self.groups * self.splits, 2, self.channels)
        return x.new_empty(shape, dtype=torch.float32)


def _channels_innermost(x: Tensor) -> Tensor:
    """Return the same tensor with its channels innermost in memory."""
    if x.ndim == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x.contiguous()


class _Normalise(torch.autograd.Function):
    """The result is returned twice: the gradients of two readers are then added in this kernel, not
    by a separate one of autograd."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor,
        running_mean: Tensor, running_var: Tensor,
        groups: int, momentum: float, eps: float, relu: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x = _channels_innermost(x)
        if residual is not None:
            residual = _channels_innermost(residual.to(x.dtype))
        grid = _Grid(x, groups)
        mean, inv_std = x.new_empty((2, groups, grid.channels), dtype=torch.float32).unbind()
        y = torch.empty_like(x)
        saved_y = None if residual is None else y
        ctx.save_for_backward(x, saved_y, weight, bias, mean, inv_std)
        ctx.set_materialize_grads(False)
        ctx.groups = groups
        ctx.relu = relu
        partial = grid.new_partial_sums(x)
        kernels.moments_kernel[grid.reduce](
            x, partial, grid.rows, grid.rows_per_program,
            C=grid.channels, SPLITS=grid.splits,
            BLOCK_ROWS=grid.reduce_rows, BLOCK_COLUMNS=grid.reduce_columns, STAGES=STAGES,
            num_warps=WARPS,
        )  # fmt: skip
        kernels.statistics_kernel[grid.finish](
            x, partial, mean, inv_std, running_mean, running_var, grid.rows, eps, momentum,
            C=grid.channels, GROUPS=groups, SPLITS=grid.splits,
            BLOCK_COLUMNS=FINISH, BLOCK_SPLITS=grid.block_splits, num_warps=WARPS,
        )  # fmt: skip
        kernels.apply_kernel[grid.map](
            x, residual, y, mean, inv_std, weight, bias, grid.rows,
            C=grid.channels, RESIDUAL=residual is not None, RELU=relu,
            BLOCK_ROWS=grid.map_rows, BLOCK_COLUMNS=grid.map_columns, num_warps=WARPS,
        )  # fmt: skip
        return y, y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dy2: Tensor | None) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, mean, inv_std = ctx.saved_tensors
        grads = [_channels_innermost(grad) for grad in (dy, dy2) if grad is not None]
        if not grads:
            return (None,) * 10
        grid = _Grid(x, ctx.groups)
        has_residual = y is not None
        two = len(grads) == 2
        dweight = torch.empty_like(weight)
        dbias = torch.empty_like(bias)
        dx = torch.empty_like(x)
        masked = torch.empty_like(x) if has_residual or two else None
        partial = grid.new_partial_sums(x)
        means = x.new_empty((grid.groups, 2, grid.channels), dtype=torch.float32)
        kernels.gradient_sums_kernel[grid.reduce](
            grads[0], grads[-1], x, y, masked, partial, mean, inv_std, weight, bias,
            grid.rows, grid.rows_per_program, C=grid.channels, SPLITS=grid.splits,
            RESIDUAL=has_residual, TWO=two, RELU=ctx.relu,
            BLOCK_ROWS=grid.reduce_rows, BLOCK_COLUMNS=grid.reduce_columns, STAGES=STAGES,
            num_warps=WARPS,
        )  # fmt: skip
        kernels.parameter_gradients_kernel[grid.finish](
            partial, means, dweight, dbias, grid.rows,
            C=grid.channels, GROUPS=grid.groups, SPLITS=grid.splits,
            BLOCK_COLUMNS=FINISH, BLOCK_SPLITS=grid.block_splits, num_warps=WARPS,
        )  # fmt: skip
        g = grads[0] if masked is None else masked
        kernels.input_gradient_kernel[grid.map](
            g, x, dx, mean, inv_std, weight, bias, means, grid.rows,
            C=grid.channels, RELU=ctx.relu and masked is None,
            BLOCK_ROWS=grid.map_rows, BLOCK_COLUMNS=grid.map_columns, num_warps=WARPS,
        )  # fmt: skip
        dresidual = masked if has_residual else None
        return dx, dresidual, dweight, dbias, None, None, None, None, None, None


def normalise(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor,
    running_mean: Tensor, running_var: Tensor,
    groups: int, momentum: float, eps: float, relu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Training-mode BatchNorm of (n, C) or (n, C, h, w), with statistics per group of n/groups,
    `+ residual` and ReLU.

    Return the result twice, for two readers. Running statistics move in place, once per group. A
    residual requires `relu`.
    """
    results: tuple[Tensor, Tensor] = _Normalise.apply(
        x, residual, weight, bias, running_mean, running_var, groups, momentum, eps, relu
    )
    return results
