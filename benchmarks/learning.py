"""What every method and algorithm learns from the images that come with the package, beside a random backbone.

    python -m benchmarks.learning [--seeds 3] [--runs runs/learning] [--only NAME …] [--out results/learning.json]

Five clients, two classes each, settings of a `-mini` recipe (small CNN, ten rounds of one epoch): each method with
FedAvg, each client alone and all images in one place; each algorithm with the method it was published with. kNN
accuracy on the 1,000 test images, in percent; where clients end with models of their own, the mean over them. Nothing
was chosen by these figures: all have the same rounds, optimizer and learning rate, which suits some better than others.
Runs are kept in `--runs`, and those that are finished are not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fedssl
from benchmarks.machine import machine
from fedssl.algorithm import ALGORITHMS
from fedssl.experiment import Experiment
from fedssl.method import METHODS
from fedssl.variants import mini

# The method that an algorithm was published with, or that its authors' tables have it with; all others: SimCLR.
PUBLISHED = {"fedu": "byol", "fedema": "byol", "ccl": "mocov2"}


class Case(NamedTuple):
    method: str
    algorithm: str = "fedavg"
    topology: str = "star"

    @property
    def name(self) -> str:
        return "-".join(self)


def cases() -> Iterator[Case]:
    for algorithm in ALGORITHMS.names():
        if algorithm != "fedavg":
            yield Case(PUBLISHED.get(algorithm, "simclr"), algorithm)
    for topology in ("star", "isolated", "centralized"):
        for method in METHODS.names():
            yield Case(method, topology=topology)


def experiment(case: Case, seed: int) -> Experiment:
    values: dict[str, Any] = {
        "clients": 5,
        "data": {"name": "fashion-mini"},
        "partition": {"name": "classes", "per_client": 2},
        "method": {"name": case.method},
        "algorithm": {"name": case.algorithm},
        "topology": {"name": case.topology},
    }
    small = mini(values)
    small["probe"] |= {"every": 0, "linear": False, "beside": ["random"] if case.topology == "star" else []}
    return Experiment.from_dict(small | {"seed": seed})


def measured(case: Case, seed: int, folder: Path) -> dict[str, float]:
    """kNN by row of the run's table: this run's, and a random backbone's."""
    run = fedssl.run(experiment(case, seed), folder / f"{case.name}-{seed}", quiet=True)
    return {row: probes["knn"]["mean"] for row, probes in run.results["table"].items()}


def summary(found: dict[Case, list[dict[str, float]]], method: str, algorithm: str) -> dict[str, Any]:
    """One method × algorithm: each seed's accuracy, and how far it leads a random backbone, seed by seed."""
    ours = found[Case(method, algorithm)]
    row: dict[str, Any] = {
        "federated": [one["this run"] for one in ours],
        "random": [one["random"] for one in ours],
    }
    for topology in ("isolated", "centralized"):
        others = found.get(Case(method, topology=topology))
        row |= {topology: [one["this run"] for one in others]} if others else {}
    leads = [a - b for a, b in zip(row["federated"], row["random"], strict=True)]
    return row | {"over_random": {"mean": statistics.fmean(leads), "each": leads}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--only", nargs="*", help="names of methods or algorithms")
    parser.add_argument("--out", type=Path, default=Path("results/learning.json"))
    args = parser.parse_args()
    found: dict[Case, list[dict[str, float]]] = {}
    for case in cases():
        if args.only and not {case.method, case.algorithm} & set(args.only):
            continue
        begun = time.perf_counter()
        found[case] = [measured(case, seed, args.runs) for seed in range(args.seeds)]
        each = ", ".join(f"{one['this run']:.1f}" for one in found[case])
        print(f"{case.name}: {each} ({time.perf_counter() - begun:.0f} s)", flush=True)
        write(found, args.out)
    print(markdown(rows_of(found)))


def rows_of(found: dict[Case, list[dict[str, float]]]) -> dict[str, dict[str, Any]]:
    stars = [case for case in found if case.topology == "star"]
    return {f"{case.method} × {case.algorithm}": summary(found, case.method, case.algorithm) for case in stars}


def write(found: dict[Case, list[dict[str, float]]], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    values = {"rows": rows_of(found), "machine": machine()}
    out.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")


def markdown(rows: dict[str, dict[str, Any]]) -> str:
    lines = ["| | federated | random | alone | in one place | over random |", "|---|---|---|---|---|---|"]
    for name, row in rows.items():
        columns = [", ".join(f"{v:.1f}" for v in row.get(key, [])) for key in KINDS]
        lines.append(f"| {name} | {' | '.join(columns)} | {row['over_random']['mean']:+.1f} |")
    return "\n".join(lines)


KINDS = ("federated", "random", "isolated", "centralized")

if __name__ == "__main__":
    main()
