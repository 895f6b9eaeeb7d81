"""Arithmetic on flat rows, in pieces that fit in the processor's cache.

Intermediate results that are read again at once, such as a float32 row in float64 or a difference
before it is squared, then stay out of main memory. Results equal those of the whole row. On CUDA a
piece is the whole row, since every operation is a kernel launch there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedssl.core.devices.precision import threads
from fedssl.core.state.buffers import row

# Elements, two megabytes of float32. With less, the slow first reads of each operation matter.
PIECE = 1 << 19


def scale(values: Tensor, weight: float) -> Tensor:
    """Return weight · values (n,) float32, in float64."""
    total = row(values.numel(), torch.float64, values.device)
    for target, piece in _pieces(total, values):
        target.copy_(piece).mul_(weight)
    return total


def add(total: Tensor, terms: Sequence[tuple[Tensor, float]]) -> None:
    """Add weight · values to total (n,) float64 for each term, values (n,) float32, in order."""
    # `total.add_(values)` would convert element by element, which takes five times as long.
    scratch = _scratch(total)
    rows = [values for values, _ in terms]
    weights = [weight for _, weight in terms]
    for target, *pieces in _pieces(total, *rows):
        for piece, weight in zip(pieces, weights, strict=True):
            converted = _first(scratch, piece.numel()).copy_(piece)
            target.add_(converted, alpha=weight)


def divide(total: Tensor, divisor: float) -> Tensor:
    """Return total (n,) float64 / divisor, rounded to float32."""
    values = row(total.numel(), device=total.device)
    scratch = _scratch(total)
    for target, piece in _pieces(values, total):
        # A product takes a third of the time of a quotient and is off by the last bit of a float64.
        quotient = torch.mul(piece, 1 / divisor, out=_first(scratch, piece.numel()))
        target.copy_(quotient)
    return values


def squared_distance(one: Tensor, other: Tensor) -> Tensor:
    """Return Σ (one − other)² of two rows (n,) of float32, as a 0-d float64 on their device.

    On a CPU one thread adds: the order of a sum, and thus its last bits, would otherwise depend on
    the number of threads, and with them the models that are mixed or clipped by a distance.
    """
    scratch = _scratch(one)
    sums = []
    with threads(1):
        for a, b in _pieces(one, other):
            difference = torch.sub(a, b, out=_first(scratch, a.numel()))
            sums.append(difference.square_().sum())
        return torch.stack(sums).sum(dtype=torch.float64)


def finite(values: Tensor) -> bool:
    """True if every element is finite.

    A finite sum proves it ten times as fast as a look at each element, which is needed only if the
    sum overflows.
    """
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def _pieces(*rows: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Return the pieces of rows of equal length, side by side."""
    if rows[0].numel() <= PIECE or rows[0].device.type != "cpu":
        return (rows,)
    return zip(*(values.split(PIECE) for values in rows), strict=True)


def _scratch(values: Tensor) -> Tensor:
    """Return a row as long as the longest piece of `values`, of its type and on its device."""
    length = values.numel()
    if values.device.type == "cpu":
        length = min(length, PIECE)
    return row(length, values.dtype, values.device)


def _first(scratch: Tensor, length: int) -> Tensor:
    """Return the first elements of a row; only the last piece needs less than the whole."""
    return scratch if scratch.numel() == length else scratch[:length]
