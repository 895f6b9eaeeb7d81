"""Measure how often the 95% intervals of a verdict contain the true value, on simulated test sets.

    python -m benchmarks.interval_coverage [--out results/interval-coverage.json]

For each case, 1,000 test sets are drawn. Each image has a difficulty that all models share, so that
models tend to fail on the same images. The first row of models is better by a known number of
points. Claim: every coverage is at least 93% (95% minus three standard deviations of a share of
1,000 draws).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.core.files.atomic import write_atomic
from fedssl.evaluation.verdict import judge

DRAWS = 1000


class Case(NamedTuple):
    """A simulated comparison of a run with clients that train alone."""

    images: int
    clients: int
    seeds: int
    accuracy: float  # of the clients
    gain: float  # of the run, as a share


CASES = (
    Case(images=50, clients=2, seeds=1, accuracy=0.7, gain=0.05),
    Case(images=100, clients=5, seeds=1, accuracy=0.9, gain=0.05),
    Case(images=400, clients=12, seeds=1, accuracy=0.757, gain=0.051),
    Case(images=1000, clients=5, seeds=1, accuracy=0.7, gain=0.0),
    Case(images=1000, clients=5, seeds=3, accuracy=0.7, gain=0.02),
    Case(images=10_000, clients=5, seeds=3, accuracy=0.82, gain=0.01),
)


def simulate(case: Case, stream: torch.Generator) -> bool:
    """Draw one test set; return whether the interval of the gain contains its true value."""
    spread = min(case.accuracy, 1 - case.accuracy - case.gain)
    ease = case.accuracy + spread * (2 * torch.rand(case.images, generator=stream) - 1)

    def right(chance: Tensor, models: int) -> Tensor:
        draws = torch.rand(models, case.images, generator=stream)
        return (draws < chance).float().mean(0)

    seeds = []
    for _ in range(case.seeds):
        own = right(ease + case.gain, 1)
        alone = right(ease, case.clients)
        seeds.append({("this run", "linear"): own, ("isolated", "linear"): alone})
    interval = judge(seeds).gains["isolated"]["linear"].interval
    return interval.low <= 100 * case.gain <= interval.high


def measure(case: Case) -> float:
    """Return the share of test sets whose interval contains the true gain."""
    stream = torch.Generator().manual_seed(0)
    covered = sum(simulate(case, stream) for _ in range(DRAWS))
    return covered / DRAWS


def main() -> None:
    """Print the coverage of every case, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/interval-coverage.json"))
    out = parser.parse_args().out
    results = []
    for case in CASES:
        coverage = measure(case)
        print(f"{case}: {coverage:.3f}")
        results.append({**case._asdict(), "coverage": coverage, "draws": DRAWS})
    write_atomic(out, f"{json.dumps(results, indent=1)}\n".encode())


if __name__ == "__main__":
    main()
