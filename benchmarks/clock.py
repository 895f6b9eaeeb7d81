"""Timing for the benchmarks: synchronise the device around each call; report the median."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """Return the result of one call and its wall time, including work left on the device."""
    synchronize(device)
    start = time.perf_counter()
    done = work()
    synchronize(device)
    return done, time.perf_counter() - start


def seconds(work: Callable[[], object], device: torch.device) -> float:
    return timed(work, device)[1]


def digits(value: float, keep: int = 4) -> float:
    """Round to the number of significant digits that a timing supports."""
    return float(f"{value:.{keep}g}")


def spread(values: list[float]) -> dict[str, Any]:
    """Return the median, the extremes, and all repeats in order."""
    return {
        "median": digits(statistics.median(values)),
        "least": digits(min(values)),
        "most": digits(max(values)),
        "each": [digits(value) for value in values],
    }
