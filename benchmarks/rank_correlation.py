"""Spearman's rank correlation, and how often chance gives one as large."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

MIN_VALUES = 3  # fewer have no meaningful order
MAX_EXHAUSTIVE = 8  # up to this number of values all orders are tried, above it a sample
SAMPLES = 20_000


def ranks(values: Sequence[float]) -> Any:
    """Return the ranks, from 1; equal values share the mean of their ranks."""
    array = np.asarray(values, dtype=float)
    return np.array([(array < value).sum() + ((array == value).sum() + 1) / 2 for value in array])


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return Pearson's correlation of the ranks; None if it is not defined.

    It is undefined for fewer than MIN_VALUES values, and if all values of x or of y are equal.
    """
    a = _centred_ranks(x)
    b = _centred_ranks(y)
    if len(x) < MIN_VALUES or not a.any() or not b.any():
        return None
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def chance_share(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the share of orders in which the correlation is at least as large, of either sign.

    All orders are tried if there are few values, else a random sample and the given order.
    """
    a = _centred_ranks(x)
    b = _centred_ranks(y)
    if len(x) <= MAX_EXHAUSTIVE:
        orders = np.array([*itertools.permutations(range(len(x)))])
    else:
        generator = np.random.default_rng(0)
        sample = [generator.permutation(len(x)) for _ in range(SAMPLES)]
        orders = np.stack([np.arange(len(x)), *sample])
    products = a[orders] @ b
    return float((np.abs(products) >= abs(a @ b) - 1e-9).mean())


def _centred_ranks(values: Sequence[float]) -> Any:
    array = ranks(values)
    return array - array.mean()
