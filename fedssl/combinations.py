"""Which algorithm goes with which method and topology: asked of each combination, and tried on tiny images."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedssl import assemble
from fedssl.algorithm import ALGORITHMS
from fedssl.data import Dataset, from_python
from fedssl.data.progress import say_nothing
from fedssl.errors import ConfigError, FedsslError
from fedssl.experiment import Experiment
from fedssl.federate import Sites, federate
from fedssl.memory import Memory
from fedssl.method import METHODS
from fedssl.runtimes.attend import Pace
from fedssl.runtimes.local import LocalRuntime
from fedssl.topology import TOPOLOGIES
from fedssl.tree import Mean, State

IMAGES, SIDE, CLIENTS, ROUNDS = 24, 12, 3, 2
# Small values of settings that methods and algorithms may have.
SMALL = {"hidden": 8, "dim": 8, "queue": 16, "prototypes": 6, "bottleneck": 4, "depth": 1, "width": 4, "classes": 3}
CPU = torch.device("cpu")


class Combination(NamedTuple):
    algorithm: str
    method: str
    topology: str


class Outcome(NamedTuple):
    """Why a combination is refused, or what went wrong with it; nothing of both: it works."""

    refused: str | None = None
    failed: str | None = None


def combinations() -> list[Combination]:
    """All there are, those of other packages included."""
    return [Combination(*names) for names in product(ALGORITHMS.names(), METHODS.names(), TOPOLOGIES.names())]


def tiny(combination: Combination, **changes: Any) -> Experiment:
    """Two rounds of three clients with eight images each, one step a round."""
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
    """Noise of three kinds of brightness."""
    labels = torch.arange(IMAGES) % 3
    noise = torch.randint(80, (IMAGES, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(0))
    return from_python(((noise + 80 * labels[:, None, None, None]).to(torch.uint8), labels))


def train(experiment: Experiment, data: Dataset, device: torch.device = CPU, memory: Memory | None = None) -> Sites:
    """The sites after the last round; nothing is written anywhere. `memory` ends as what clients remember."""
    seen, owners = assemble.deal(experiment, data, say_nothing)
    found = assemble.read_public(experiment, data, Path(), say_nothing)
    trainers = assemble.build_trainers(experiment, seen.train.image, device, 1)
    public = {} if found is None else {device: found.to(device)}
    sites = assemble.first_sites(experiment, trainers[0], list(owners), public.get(device))
    shards, pace = assemble.shards(seen, owners, [device]), Pace(experiment.train.lr, 0.0, experiment.rounds)
    algorithm, seed = experiment.algorithm, experiment.seed
    stop, memory = threading.Event(), memory or Memory()
    runtime = LocalRuntime(algorithm, shards, trainers, memory, seed, lambda round: pace, stop, public=public)
    try:
        wire = algorithm.wire(trainers[0].method)
        for round in federate(algorithm, experiment.topology, runtime, wire, sites, Mean, seed, 0, experiment.rounds):
            if dropped := next((report.dropped for report in round.reports if report.dropped), None):
                raise FedsslError(dropped)
            sites = round.sites
    finally:
        runtime.close()
    return sites


def attempt(combination: Combination, data: Dataset | None) -> Outcome:
    """What becomes of a combination; without images it is only asked whether it would."""
    try:
        experiment = tiny(combination)
        experiment.check()
    except ConfigError as refusal:
        return Outcome(refused=str(refusal))
    if data is None:
        return Outcome()
    try:
        sites = train(experiment, data)
    except Exception as problem:
        return Outcome(failed=f"{type(problem).__name__}: {problem}")
    rows = [value.floats for tree in sites.values() for value in tree.values() if isinstance(value, State)]
    return Outcome() if all(bool(row.isfinite().all()) for row in rows) else Outcome(failed="weights are not finite")


def attempts(data: Dataset | None, some: Iterable[Combination] | None = None) -> Iterator[tuple[Combination, Outcome]]:
    for combination in combinations() if some is None else some:
        yield combination, attempt(combination, data)


def tables(found: Mapping[Combination, Outcome]) -> str:
    """Markdown: methods × algorithms over all topologies, topologies × algorithms over all methods, and why not."""
    reasons = list(dict.fromkeys(_reason(outcome) for outcome in found.values() if outcome != Outcome()))

    def cell(fits: Callable[[Combination], bool]) -> str:
        outcomes = [outcome for combination, outcome in found.items() if fits(combination)]
        if Outcome() in outcomes and not any(outcome.failed for outcome in outcomes):
            return "yes"
        whys = dict.fromkeys(_reason(outcome) for outcome in outcomes if outcome != Outcome())
        return ", ".join(str(reasons.index(why) + 1) for why in whys)

    def grid(what: str) -> list[str]:
        rows, columns = (list(dict.fromkeys(getattr(c, part) for c in found)) for part in (what, "algorithm"))
        lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for row in rows:
            cells = [cell(lambda c, r=row, k=k: c.algorithm == k and getattr(c, what) == r) for k in columns]  # type: ignore[misc]
            lines.append(f"| {row} | {' | '.join(cells)} |")
        return lines

    whys = [f"{i}. {reason}" for i, reason in enumerate(reasons, 1)]
    return "\n".join([*grid("method"), "", *grid("topology"), *(["", *whys] if whys else [])])


def _reason(outcome: Outcome) -> str:
    """A refusal without its second half, which names what the table's row or column names."""
    return outcome.failed or (outcome.refused or "").partition(";")[0]
