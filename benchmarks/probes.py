"""Measure the seconds that probes take on computed features, with the size of CIFAR-10.

    python -m benchmarks.probes [--device cuda] [--repeats 3] [--out results/speed/probes-cpu.json]

50,000 features of 512 numbers for training and 10,000 for testing, of ten overlapping classes: kNN,
and the linear probe with each protocol and by L-BFGS.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.clock import spread, timed
from benchmarks.machine import machine
from fedssl.probes import LINEAR, Labelled, knn_predict, linear_predict

TRAIN, TEST, WIDTH, CLASSES = 50_000, 10_000, 512, 10


def features(count: int, seed: int, device: torch.device) -> Labelled:
    """Return features around one centre per class; classes overlap."""
    stream = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % CLASSES
    found = 0.1 * centres[labels] + torch.randn(count, WIDTH, generator=stream)
    return Labelled(found.relu().to(device), labels.to(device))  # like features after a ReLU


def measure(device: torch.device, repeats: int) -> dict[str, Any]:
    train, test = features(TRAIN, 1, device), features(TEST, 2, device)
    probes = {"knn": partial(knn_predict, train, test.features, 200, 0.1)}
    probes |= {
        f"linear, {name}": partial(linear_predict, train, test.features, how)
        for name, how in LINEAR.items()
        if not how.augmented  # learns from images, not from features
    }
    probes["linear, L-BFGS"] = partial(linear_predict, train, test.features, solver="lbfgs")
    found = {}
    for name, probe in probes.items():
        times = []
        for _ in range(repeats):
            guesses, taken = timed(probe, device)
            times.append(taken)
        accuracy = 100 * float((guesses == test.labels).float().mean())
        found[name] = {"seconds": spread(times), "accuracy": round(accuracy, 2)}
        print(name, found[name], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    report = {"machine": machine(), "probes": measure(device, args.repeats)}
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
