"""Check, or train on tiny images, every combination of algorithm, method and topology."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product, starmap
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedssl.algorithm import ALGORITHMS, Sites
from fedssl.core.console import ignore_message
from fedssl.core.errors import ConfigError, FedsslError
from fedssl.core.state.state import State
from fedssl.data import Dataset, from_python
from fedssl.engine.checkpoints.client_memory import ClientMemory
from fedssl.engine.federate import Round, federate
from fedssl.engine.runtimes.client_round import RoundPosition
from fedssl.engine.runtimes.local import LocalRuntime
from fedssl.experiment import federation_setup
from fedssl.experiment.client_data import partition_data, read_public
from fedssl.experiment.experiment import Experiment
from fedssl.method import METHODS
from fedssl.topologies.topology import TOPOLOGIES

IMAGES = 24
SIDE = 12  # pixels
CLIENTS = 3
ROUNDS = 2
# Small values for settings that methods and algorithms may have.
SMALL = {
    "hidden": 8,
    "dim": 8,
    "queue": 16,
    "prototypes": 6,
    "bottleneck": 4,
    "depth": 1,
    "width": 4,
    "classes": 3,
}
CPU = torch.device("cpu")


class Combination(NamedTuple):
    """The registered names of an algorithm, a method and a topology."""

    algorithm: str
    method: str
    topology: str


class Compatibility(NamedTuple):
    """Why a combination is refused, or how it failed; both None if it works."""

    refused: str | None = None
    failed: str | None = None

    @property
    def reason(self) -> str | None:
        """The failure, or the refusal without its second half, which names the combination."""
        if self.failed is not None:
            return self.failed
        if self.refused is not None:
            return re.split("; |, but ", self.refused)[0]
        return None


WORKS = Compatibility()


def combinations() -> list[Combination]:
    """Return all combinations, including those of other packages."""
    names = product(ALGORITHMS.names(), METHODS.names(), TOPOLOGIES.names())
    return list(starmap(Combination, names))


def tiny(combination: Combination, **changes: Any) -> Experiment:
    """Return an experiment of two rounds, with three clients of eight images, one step a round."""
    fields = METHODS[combination.method].Settings.model_fields
    backbone = "vit_mini" if fields["backbone"].default.startswith("vit") else "cnn"
    small = {key: value for key, value in SMALL.items() if key in fields}
    topology: dict[str, Any] = {"name": combination.topology}
    if "edges" in TOPOLOGIES[combination.topology].model_fields:
        topology["edges"] = [(0, 1), (1, 2)]
    values = {
        "data": "given",
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "method": {"name": combination.method, "backbone": backbone, **small},
        "algorithm": {"name": combination.algorithm},
        "topology": topology,
        "train": {"batch": 8, "lr": 0.01, "workers": 1},
    }
    return Experiment.from_dict(values | changes)


def images() -> Dataset:
    """Return noise images of three classes that differ in brightness."""
    labels = torch.arange(IMAGES) % 3
    noise = torch.randint(80, (IMAGES, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(0))
    brighter = noise + 80 * labels[:, None, None, None]
    return from_python((brighter.to(torch.uint8), labels))


def train(
    experiment: Experiment,
    data: Dataset,
    device: torch.device = CPU,
    memory: ClientMemory | None = None,
) -> Sites:
    """Return the sites after the last round, without writing any file.

    `memory`, if given, has the state of the clients afterwards. Raises FedsslError if a client is
    dropped.
    """
    seen, owners = partition_data(experiment, data, ignore_message)
    public = read_public(experiment, data, Path(), ignore_message)
    built = federation_setup.Federation.build(
        experiment, seen, owners, public=public, device=device, parallel=1
    )
    sites = built.first_sites()
    constant = RoundPosition(experiment.train.lr, 0.0, experiment.rounds)
    context = replace(built.context(threading.Event()), position=lambda round: constant)
    runtime = LocalRuntime(context, built.shards, built.trainers, memory or ClientMemory())
    try:
        for round in federate(
            experiment.algorithm,
            experiment.topology,
            runtime,
            sites,
            schema=built.schema,
            rounds=experiment.rounds,
            seed=experiment.seed,
            mean=experiment.mean.start,
        ):
            _raise_if_dropped(round)
            sites = round.sites
    finally:
        runtime.close()
    return sites


def _raise_if_dropped(round: Round) -> None:
    for report in round.reports:
        if report.dropped:
            raise FedsslError(report.dropped)


def attempt(combination: Combination, data: Dataset | None) -> Compatibility:
    """Return the verdict of a combination; without images it is checked but not trained."""
    try:
        experiment = tiny(combination)
        experiment.check()
    except ConfigError as refusal:
        return Compatibility(refused=str(refusal))
    if data is None:
        return WORKS
    try:
        sites = train(experiment, data)
    except Exception as problem:
        return Compatibility(failed=f"{type(problem).__name__}: {problem}")
    if not _all_finite(sites):
        return Compatibility(failed="weights are not finite")
    return WORKS


def _all_finite(sites: Sites) -> bool:
    for tree in sites.values():
        for value in tree.values():
            if isinstance(value, State) and not value.floats.isfinite().all():
                return False
    return True


def attempts(
    data: Dataset | None, selected: Iterable[Combination] | None = None
) -> Iterator[tuple[Combination, Compatibility]]:
    """Yield the verdicts of the selected combinations; of all by default."""
    if selected is None:
        selected = combinations()
    for combination in selected:
        yield combination, attempt(combination, data)


def compatibility_tables(verdicts: Mapping[Combination, Compatibility]) -> str:
    """Return Markdown tables: methods × algorithms, topologies × algorithms, and the reasons.

    A cell of the first table is over all topologies, a cell of the second over all methods.
    """
    reasons = _distinct_reasons(verdicts.values())
    lines = [*_table(verdicts, "method", reasons), "", *_table(verdicts, "topology", reasons)]
    if reasons:
        lines.append("")
    lines += [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join(lines)


def _table(
    verdicts: Mapping[Combination, Compatibility], row_kind: str, reasons: list[str]
) -> Iterator[str]:
    """Yield the lines of a table with a row for each method or topology."""
    algorithms: dict[str, None] = {}  # in their order
    cells: dict[str, dict[str, list[Compatibility]]] = {}
    for combination, verdict in verdicts.items():
        row = cells.setdefault(getattr(combination, row_kind), {})
        row.setdefault(combination.algorithm, []).append(verdict)
        algorithms[combination.algorithm] = None
    yield f"| | {' | '.join(algorithms)} |"
    yield "|---" * (len(algorithms) + 1) + "|"
    for name, row in cells.items():
        texts = [_cell(row.get(algorithm, []), reasons) for algorithm in algorithms]
        yield f"| {name} | {' | '.join(texts)} |"


def _cell(verdicts: list[Compatibility], reasons: list[str]) -> str:
    """Return "yes" if a combination works and none failed, else the numbers of the reasons."""
    if WORKS in verdicts and not any(verdict.failed for verdict in verdicts):
        return "yes"
    return ", ".join(str(reasons.index(reason) + 1) for reason in _distinct_reasons(verdicts))


def _distinct_reasons(verdicts: Iterable[Compatibility]) -> list[str]:
    reasons: dict[str, None] = {}  # in the order of their first verdict
    for verdict in verdicts:
        if verdict.reason is not None:
            reasons[verdict.reason] = None
    return list(reasons)
