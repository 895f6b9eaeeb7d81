"""Measure what every method and algorithm learns on the embedded images, over a random backbone.

    python -m benchmarks.learning [--seeds 3] [--runs runs/learning] [--only NAME …]
                                  [--out results/learning.json] [--processes 1]

Five clients with two classes each, settings of a `-mini` recipe (small CNN, ten rounds of one
epoch): each method with FedAvg, with isolated clients and centralized; each algorithm with the
method it was published with. The figures are kNN accuracies on the 1,000 test images, in percent;
for personal models, the mean over clients. Nothing was chosen by these figures: all have the same
rounds, optimizer and learning rate, which suit some better than others. Methods that stay below a
random backbone are repeated with more suitable training settings (`SUITED`), and with a linear
probe, because MAE's features are not meant to be compared by their angles. Runs are stored in
`--runs`; finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import fedssl
from benchmarks.machine import machine
from fedssl.algorithm import ALGORITHMS
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.variants import mini
from fedssl.method import METHODS

# The method that an algorithm was published with, or that its authors' tables use. Default: SimCLR.
PUBLISHED = {"fedu": "byol", "fedema": "byol", "ccl": "mocov2"}


# Chosen on held-out training images, one seed.
SUITED: dict[str, dict[str, Any]] = {
    "dino": {"train.lr": 0.0005},
    "mae": {"train.lr": 0.002, "train.batch": 32, "train.epochs": 2},
}


class Case(NamedTuple):
    method: str
    algorithm: str = "fedavg"
    topology: str = "star"
    suited: bool = False

    @property
    def name(self) -> str:
        return "-".join(self[:3]) + "-suited" * self.suited


Measured = dict[str, dict[str, float]]
Found = dict[Case, list[Measured]]


def cases() -> Iterator[Case]:
    for algorithm in ALGORITHMS.names():
        if algorithm != "fedavg":
            yield Case(PUBLISHED.get(algorithm, "simclr"), algorithm)
    for topology in ("star", "isolated", "centralized"):
        for method in METHODS.names():
            yield Case(method, topology=topology)
        for method in SUITED:
            yield Case(method, topology=topology, suited=True)


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
    baselines = ["random"] if case.topology == "star" else []
    small["probe"] |= {"every": 0, "linear": case.suited, "baselines": baselines}
    return Experiment.from_dict(small | {"seed": seed}).with_changes(
        SUITED[case.method] if case.suited else {}
    )


def measured(case: Case, seed: int, folder: Path) -> Measured:
    """Return accuracies by probe and row of the run's table: this run, and a random backbone."""
    run = fedssl.run(
        experiment(case, seed), folder / f"{case.name}-{seed}", device="cpu", quiet=True
    )
    table = run.results["table"]
    return {
        probe: {row: found[probe]["mean"] for row, found in table.items()}
        for probe in table["this run"]
    }


def summary(found: Found, case: Case, probe: str = "knn") -> dict[str, Any]:
    """Return each seed's accuracy, and its lead over a random backbone."""
    row: dict[str, Any] = {
        "federated": [one[probe]["this run"] for one in found[case]],
        "random": [one[probe]["random"] for one in found[case]],
    }
    for topology in ("isolated", "centralized"):
        others = found.get(case._replace(algorithm="fedavg", topology=topology))
        row |= {topology: [one[probe]["this run"] for one in others]} if others else {}
    supports_ema = [a - b for a, b in zip(row["federated"], row["random"], strict=True)]
    return row | {"over_random": {"mean": statistics.fmean(supports_ema), "each": supports_ema}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--only", nargs="*", help="names of methods or algorithms")
    parser.add_argument("--out", type=Path, default=Path("results/learning.json"))
    parser.add_argument("--processes", type=int, default=1, help="number of concurrent runs")
    args = parser.parse_args()
    wanted = [
        case for case in cases() if not args.only or {case.method, case.algorithm} & set(args.only)
    ]
    found: Found = {}
    with ProcessPoolExecutor(args.processes, get_context("spawn")) as pool:
        going = {
            case: [pool.submit(measured, case, seed, args.runs) for seed in range(args.seeds)]
            for case in wanted
        }
        for case, runs in going.items():
            found[case] = [run.result() for run in runs]
            print(
                f"{case.name}: {_each([one['knn']['this run'] for one in found[case]])}", flush=True
            )
            write(found, args.out)
    print(markdown(rows_of(found)))


def rows_of(found: Found) -> dict[str, dict[str, Any]]:
    """Return a row for each method × algorithm; the name includes changed training settings."""
    stars = [(case, probe) for case in found if case.topology == "star" for probe in found[case][0]]
    return {_name(case, probe): summary(found, case, probe) for case, probe in stars}


def _name(case: Case, probe: str) -> str:
    own = [f"{key} = {value}" for key, value in SUITED[case.method].items()] if case.suited else []
    also = [*own, *(["linear probe"] if probe == "linear" else [])]
    return f"{case.method} × {case.algorithm}" + (f" ({', '.join(also)})" if also else "")


def write(found: Found, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    values = {"rows": rows_of(found), "machine": machine()}
    out.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")


def markdown(rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| | federated | random | alone | centralized | over random |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        columns = [_each(row.get(key, [])) for key in KINDS]
        lines.append(f"| {name} | {' | '.join(columns)} | {row['over_random']['mean']:+.1f} |")
    return "\n".join(lines)


def _each(accuracies: list[float]) -> str:
    return ", ".join(f"{accuracy:.1f}" for accuracy in accuracies)


KINDS = ("federated", "random", "isolated", "centralized")

if __name__ == "__main__":
    main()
