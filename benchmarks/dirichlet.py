"""Measure how even and how non-IID Dirichlet partitions of CIFAR-10 are, with and without a cap.

    python -m benchmarks.dirichlet [--out results/dirichlet.json]

For each number of clients K and each α, 10 classes of 5,000 images are dealt 1,000 times, with and
without Dec-SSL's cap. A draw is accepted if every client holds 0.5 to 1.5 times N/K images. The
output has the number of accepted draws and, over these, the mean and the standard deviation of the
average earth mover's distance. It also has the mean distance if each client keeps only the first
80% of its images in order of class, and the shares of the first and of the last class that are kept
then. Dec-SSL's Figure 17 prints the distance of one draw for each α, with K = 5.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedssl.core.files.atomic import write_atomic
from fedssl.data import earth_movers_distance
from fedssl.data.class_partition import draw_ends, has_even_sizes

DRAWS = 1000
CLASSES, PER_CLASS = 10, 5000
CLIENTS = (5, 10, 20, 100)
ALPHAS = (5, 1, 0.5, 0.1, 0.02, 0.01)
PUBLISHED = {5: 0.29, 1: 0.77, 0.5: 0.97, 0.1: 1.27, 0.01: 1.57}  # K = 5
SHARE = 0.8


def accepted_tables(clients: int, alpha: float, capped: bool) -> list[Tensor]:
    """Return the images of each class at each client (K, C), for each accepted draw."""
    random = np.random.default_rng(0)
    counts = np.full(CLASSES, PER_CLASS)
    tables = []
    for _ in range(DRAWS):
        ends = draw_ends(counts, clients, alpha, capped=capped, random=random)
        if ends is not None and has_even_sizes(ends):
            tables.append(torch.from_numpy(np.diff(ends, prepend=0).T.copy()))
    return tables


def first_classes(table: Tensor) -> Tensor:
    """Return the first 80% of each client's images (K, C), class by class."""
    ends = table.cumsum(1).minimum((SHARE * table.sum(1, keepdim=True)).floor().long())
    return ends.diff(dim=1, prepend=torch.zeros(len(table), 1, dtype=torch.int64))


def describe(tables: list[Tensor]) -> dict[str, Any]:
    """Return figures over accepted draws, as plain values."""
    report: dict[str, Any] = {"accepted": len(tables)}
    if not tables:
        return report
    kept = list(map(first_classes, tables))
    distances = [earth_movers_distance(table) for table in tables]
    report["distance"] = round(float(np.mean(distances)), 3)
    report["deviation"] = round(float(np.std(distances)), 3)
    report["distance_of_80%"] = round(float(np.mean(list(map(earth_movers_distance, kept)))), 3)
    trained = torch.stack([table.sum(0) for table in kept]).double().mean(0) / PER_CLASS
    report["trained_share_of_first_class"] = round(float(trained[0]), 3)
    report["trained_share_of_last_class"] = round(float(trained[-1]), 3)
    return report


def measure() -> list[dict[str, Any]]:
    rows = []
    for clients in CLIENTS:
        for alpha in ALPHAS:
            for capped in (False, True):
                row: dict[str, Any] = {"clients": clients, "alpha": alpha, "capped": capped}
                row |= describe(accepted_tables(clients, alpha, capped))
                if clients == 5:
                    row["published"] = PUBLISHED.get(alpha)
                rows.append(row)
                print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    report = {"draws": DRAWS, "images": CLASSES * PER_CLASS, "partitions": measure()}
    if args.out is not None:
        write_atomic(args.out, (json.dumps(report, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
