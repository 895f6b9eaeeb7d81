"""Arithmetic on flat rows, in pieces that stay in the processor's cache.

What is written out only to be read again at once, a float32 row as float64 or a difference about to be squared, then
never goes through memory, and results are those of the whole row. On CUDA a piece is the whole row: there every
operation is a launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedssl.recycle import row

PIECE = 1 << 19  # numbers, two megabytes of float32; with less, each operation's slow first reads begin to count


def weighted(values: Tensor, weight: float) -> Tensor:
    """weight · values (n,) float32, in float64."""
    total = row(values.numel(), torch.float64, values.device)
    for to, piece in _pieces(total, values):
        to.copy_(piece).mul_(weight)
    return total


def add(total: Tensor, terms: Sequence[tuple[Tensor, float]]) -> None:
    """total (n,) float64 += weight · values for each of some terms, values (n,) float32, one after another."""
    scratch = _scratch(total)  # `total.add_(values)` would convert number by number, at five times the price
    for to, *pieces in _pieces(total, *(values for values, _ in terms)):
        for piece, (_, weight) in zip(pieces, terms, strict=True):
            to.add_(_part(scratch, piece).copy_(piece), alpha=weight)


def divided(total: Tensor, by: float) -> Tensor:
    """total (n,) float64 / by, rounded to float32."""
    values, scratch = row(total.numel(), device=total.device), _scratch(total)
    for to, piece in _pieces(values, total):
        # A product in place of a quotient, at a third of the time, errs in the last bit of a float64.
        to.copy_(torch.mul(piece, 1 / by, out=_part(scratch, piece)))
    return values


def squared_distance(one: Tensor, other: Tensor) -> Tensor:
    """Σ (one − other)² of two rows (n,) of float32: 0-d, float64, on their device."""
    scratch = _scratch(one)
    squares = [torch.sub(a, b, out=_part(scratch, a)).square_().sum() for a, b in _pieces(one, other)]
    return torch.stack(squares).sum(dtype=torch.float64)


def finite(values: Tensor) -> bool:
    """Whether every number is. A sum tells, ten times as fast as looking at each; unless it overflows itself."""
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def _pieces(*rows: Tensor) -> Iterable[tuple[Tensor, ...]]:
    if rows[0].numel() <= PIECE or rows[0].device.type != "cpu":
        return (rows,)
    return zip(*(r.split(PIECE) for r in rows), strict=True)


def _scratch(like: Tensor) -> Tensor:
    """A row as long as the longest piece of another, and of its type."""
    length = like.numel()
    return row(min(length, PIECE) if like.device.type == "cpu" else length, like.dtype, like.device)


def _part(scratch: Tensor, piece: Tensor) -> Tensor:
    """As much of the scratch as a piece needs: all of it but for the last one."""
    return scratch if scratch.shape == piece.shape else scratch[: piece.numel()]
