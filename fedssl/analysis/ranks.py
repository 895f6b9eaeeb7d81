"""Spearman's rank correlation, and how easily one as large comes about by chance."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

FEWEST = 3  # values whose order says anything
ALL_ORDERS = 8  # values, up to which all orders are tried; of more, a sample
SAMPLE = 20_000


def ranks(values: Sequence[float]) -> Any:
    """From 1; equal values share the mean of their places."""
    array = np.asarray(values, dtype=float)
    return np.array([(array < value).sum() + ((array == value).sum() + 1) / 2 for value in array])


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's correlation of the ranks; None for fewer than three, or if all of one are equal."""
    a, b = _centred(x), _centred(y)
    if len(x) < FEWEST or not a.any() or not b.any():
        return None
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def by_chance(x: Sequence[float], y: Sequence[float]) -> float:
    """The share of orders in which ranks of x are at least as much correlated with those of y, either way: of all
    orders where there are few values, else of a sample, in which the order as it is counts too."""
    a, b = _centred(x), _centred(y)
    if len(x) <= ALL_ORDERS:
        orders = np.array([*itertools.permutations(range(len(x)))])
    else:
        draw = np.random.default_rng(0)
        orders = np.stack([np.arange(len(x)), *(draw.permutation(len(x)) for _ in range(SAMPLE))])
    products = a[orders] @ b
    return float((np.abs(products) >= abs(a @ b) - 1e-9).mean())


def _centred(values: Sequence[float]) -> Any:
    found = ranks(values)
    return found - found.mean()
