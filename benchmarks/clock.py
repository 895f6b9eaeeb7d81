"""How the benchmarks take time: the device is idle before and after, and a figure is a median with its extremes."""

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
    """What one call returns, and its wall time; whatever it left running on the device is waited for."""
    synchronize(device)
    start = time.perf_counter()
    done = work()
    synchronize(device)
    return done, time.perf_counter() - start


def seconds(work: Callable[[], object], device: torch.device) -> float:
    return timed(work, device)[1]


def digits(value: float, keep: int = 4) -> float:
    """As many significant digits as a clock is worth."""
    return float(f"{value:.{keep}g}")


def spread(values: list[float]) -> dict[str, Any]:
    """Median, extremes, and every repeat in the order it was measured."""
    return {
        "median": digits(statistics.median(values)),
        "least": digits(min(values)),
        "most": digits(max(values)),
        "each": [digits(value) for value in values],
    }
