"""Read the runs and the files of benchmarks in results/.

A folder with experiment.toml, rounds.jsonl and results.json is a run.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markdown_table import count

RESULTS = Path(__file__).parents[1] / "results"
# Folders of runs, in the order of the page, with how they were made.
GROUPS = {
    "cifar10": "FedEMA's setting on CIFAR-10 with the full budget: "
    "`python -m benchmarks.papers cifar10`.",
    "cifar10-short": "Comparison of algorithms on CIFAR-10 with a fifth of the papers' budget: "
    "`python -m benchmarks.papers cifar10-short`.",
    "fedca-table-1": "FedCA's Table 1 with the 5-layer CNN, CIFAR-10: "
    "`python -m benchmarks.papers fedca-table-1`.",
    "fedema-table-6": "FedEMA with 5 of 20 clients in each round, CIFAR-10: "
    "`python -m benchmarks.papers fedema-table-6`.",
    "ccl-table-1": "CCL on Fashion-MNIST with its recipe's budget: "
    "`python -m benchmarks.papers ccl-table-1`.",
    "decssl-table-2": "FeatARC, FedBN and Per-SSFL on CIFAR-10: "
    "`python -m benchmarks.papers decssl-table-2`.",
    "fedu-table-4-short": "The networks that FedU's baselines aggregate and update, CIFAR-10: "
    "`python -m benchmarks.papers fedu-table-4-short`.",
    "fashion-mnist": "CCL, FedSimCLR, and centralized MoCo v2 on Fashion-MNIST: "
    "`python -m benchmarks.papers fashion-mnist`.",
    "fedbyol-cifar10-short": "FedBYOL in CIFAR-10's short setting, with an earlier version: two "
    "seeds, and torchvision's initialisation.",
}
OUTCOME = ("labelled", "accuracy", "note", "error")  # of a probe; other keys are its settings
LBFGS = {"probe": "linear", "solver": "lbfgs"}
EASYFL = {"probe": "linear", "protocol": "easyfl"}


class Run(NamedTuple):
    """A finished run in results/."""

    name: str
    experiment: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    results: Mapping[str, Any]
    probes: Sequence[Mapping[str, Any]]  # measurements with other probes

    @classmethod
    def read(cls, folder: Path) -> Run:
        """Read the files of a run directory."""
        lines = (folder / "rounds.jsonl").read_text("utf-8").splitlines()
        return cls(
            folder.name,
            tomllib.loads((folder / "experiment.toml").read_text("utf-8")),
            [json.loads(line) for line in lines],
            read_json(folder / "results.json"),
            read_json(folder / "probes.json") if (folder / "probes.json").is_file() else (),
        )

    @property
    def knn(self) -> list[tuple[int, float]]:
        """Rounds and their kNN accuracy, where it was measured."""
        return [(line["round"], line["knn"]) for line in self.rounds if line.get("knn") is not None]

    @property
    def about(self) -> str:
        """The method, the algorithm and the seed."""
        chosen = (self.experiment[table]["name"] for table in ("method", "algorithm"))
        return f"{' × '.join(chosen)}, seed {self.experiment['seed']}"

    @property
    def settings(self) -> dict[str, str]:
        """Describe the settings of the run, by kind."""
        chosen = self.experiment
        return {
            "clients": self.split,
            "backbone": chosen["method"]["backbone"],
            "length": length(chosen),
            "device": self.results["environment"]["device"].split(": ")[-1],
        }

    @property
    def split(self) -> str:
        """Describe how the images are partitioned."""
        if self.experiment["topology"]["name"] == "centralized":
            return "centralized"
        partition = self.experiment["partition"]
        how = partition["name"]
        if "per_client" in partition:
            how = f"{partition['per_client']} classes each"
        return f"{count(self.experiment['clients'], 'client')}, {how}"

    @property
    def accuracies(self) -> dict[str, float]:
        """Mean accuracies by probe."""
        return {probe: score["mean"] for probe, score in self._scores.items()}

    @property
    def _scores(self) -> Mapping[str, Any]:
        """Return the scores by probe; empty without labelled test images."""
        return dict(self.results["table"].get("this run", {}))

    def measured(self, probe: str) -> str:
        """Return the accuracy of a probe, with its spread over models; "" if not measured."""
        score = self._scores.get(probe)
        if score is None:
            return ""
        return f"{score['mean']:.1f}" + (f" ± {score['std']:.1f}" if score.get("std") else "")

    @property
    def lbfgs(self) -> float | None:
        """The accuracy of the linear classifier that L-BFGS finds, with all labels, if measured."""
        return self._accuracy_of(LBFGS)

    @property
    def easyfl(self) -> float | None:
        """The accuracy by the linear protocol of FedU's and FedEMA's authors, if measured."""
        return self._accuracy_of(EASYFL)

    def _accuracy_of(self, wanted: Mapping[str, str]) -> float | None:
        """Return the accuracy of the additional probe with exactly these settings."""
        for probe in self.probes:
            settings = {key: probe[key] for key in probe.keys() - OUTCOME}
            if settings == wanted and "accuracy" in probe:
                return float(probe["accuracy"])
        return None

    @property
    def date(self) -> str:
        """The day on which the run was stored."""
        return str(self.results.get("date", ""))


def length(experiment: Mapping[str, Any]) -> str:
    """Describe the rounds of an experiment, and the local epochs of each."""
    rounds = count(experiment["rounds"], "round")
    epochs = count(experiment["train"]["epochs"], "epoch")
    return f"{rounds} × {epochs}"


def groups() -> Iterator[tuple[str, list[Run]]]:
    """Yield folders of finished runs: those in GROUPS first, in that order."""
    found = {path.parent.parent for path in RESULTS.glob("*/*/results.json")}
    order = {name: position for position, name in enumerate(GROUPS)}
    for folder in sorted(found, key=lambda path: (order.get(path.name, len(order)), path.name)):
        yield folder.name, [Run.read(path.parent) for path in sorted(folder.glob("*/results.json"))]


def read_json(path: Path) -> Any:
    """Return the values in a JSON file."""
    return json.loads(path.read_text("utf-8"))


def read_benchmark(name: str) -> Any:
    """Return the values in the file of a benchmark, by its path in results/ without suffix."""
    return read_json(RESULTS / f"{name}.json")


def benchmark_files(pattern: str) -> list[Path]:
    """Return the files in results/ that match a pattern, sorted."""
    return sorted(RESULTS.glob(pattern))
