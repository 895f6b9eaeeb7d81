"""What a cell needs: trainings, one for each seed, and a measurement of each. Where both lie, and their commands.

A training lies in a folder named after its experiment's hash, so that cells and tables that train the same thing share
it, and a changed setting never meets old results. What is only measured afterwards is no part of that experiment: its
measurements lie in the folder's `measures`, named after the probe's settings.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w
import torch

from fedssl.changes import merge_changes, parse_assignment, parse_assignments
from fedssl.errors import ConfigError, FedsslError
from fedssl.evaluate import ANEW, check_suits
from fedssl.experiment import Experiment, plain_values
from fedssl.probes import PROBES, ProbeSettings
from fedssl.tables import LOGGED, Cell
from fedssl.topology import Centralized
from fedssl.train import resolve_precision

# What a run measures of its own at its end but kNN: left to the cells' probes. All else under [probe] stays, since the
# rounds log or every probe depends on it.
AFTERWARDS: dict[str, Any] = {"linear": False, "beside": [], "picture": False}
PROBED: dict[str, Any] = {
    key: ProbeSettings.model_fields[key].default for key in ("labels", "protocol", "penalty", "solver", "frozen")
}


@dataclass(frozen=True)
class Measure:
    """A probe with its settings, or something to read off the rounds log."""

    probe: str
    settings: tuple[tuple[str, Any], ...] = ()
    on: str | None = None

    @cached_property
    def file(self) -> str:
        """Its name in a training's folder."""
        said = json.dumps([self.probe, dict(self.settings), self.on], sort_keys=True)
        return f"{self.probe}-{hashlib.sha256(said.encode()).hexdigest()[:8]}.json"


@dataclass(frozen=True, eq=False)
class Training:
    """One run: an experiment by the name and the changes that give it, with its seed. Two that train the same thing are
    equal, whatever they are called."""

    name: str  # of a recipe or variant, or of a TOML file
    changes: tuple[tuple[str, Any], ...]
    experiment: Experiment  # as it runs on the device asked for
    folder: Path

    @cached_property
    def key(self) -> str:
        return self.experiment.hash()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Training) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def command(self, measure: Measure, device: str, data_dir: Path) -> str:
        """What a person types to get the same figure."""
        where = ["--device", device] + ([] if data_dir == Path("data") else ["--data-dir", str(data_dir)])
        run = ["fedssl", "run", self.name, *_sets(self.changes), "--dir", str(self.folder), *where]
        if measure.probe in LOGGED:
            return shlex.join(run)
        on = ["--on", measure.on] if measure.on else []
        probe = ["fedssl", "evaluate", str(self.folder), "--probe", measure.probe, *on, *_sets(measure.settings)]
        return f"{shlex.join(run)} && {shlex.join([*probe, *where])}"


@dataclass(frozen=True)
class Want:
    """One seed of one cell. `problem` says why it cannot be had, if it cannot."""

    cell: Cell
    seed: int
    training: Training | None
    measure: Measure | None
    problem: str | None = None


def wants(cells: Iterable[Cell], suffix: str, seeds: Iterable[int], root: Path, device: torch.device) -> Iterator[Want]:
    """Everything that cells need; `suffix` is that of the recipes' variants: "", "-short" or "-mini"."""
    seeds = list(seeds)
    for cell in cells:
        for seed in seeds:
            try:
                yield Want(cell, seed, *_resolved(cell, suffix, seed, root, device), cell.cannot)
            except FedsslError as problem:
                yield Want(cell, seed, None, None, cell.cannot or str(problem))


def _resolved(cell: Cell, suffix: str, seed: int, root: Path, device: torch.device) -> tuple[Training, Measure]:
    name = cell.recipe + suffix
    values = plain_values(name)
    asked = parse_assignments(cell.set)
    if "seed" in asked:
        raise ConfigError("seeds are asked for with --seeds, not with --set")
    whole = Experiment.from_dict(merge_changes(values, asked))
    measure = _measure(cell, whole, suffix)
    changes = asked | {"seed": seed} | _only_trained(whole)
    experiment = Experiment.from_dict(merge_changes(values, changes))
    precision = resolve_precision(experiment.train.precision, device)
    runs = experiment.with_changes({"train.precision": precision})
    return Training(name, tuple(changes.items()), runs, root / _folder(runs)), measure


def _measure(cell: Cell, experiment: Experiment, suffix: str) -> Measure:
    """The probe with the settings in which it differs from what the training's folder says, which are the usual ones:
    so it depends on no other cell of the same training."""
    given = parse_assignments(cell.settings)
    said = {key.removeprefix("probe."): value for key, value in given.items()}
    if cell.probe in LOGGED:
        return Measure(cell.probe, tuple(said.items()))
    check_suits(cell.probe, experiment)
    probe = PROBES[cell.probe]
    if probe.together:
        _check_one_model(cell.probe, experiment)
    asked = {key.removeprefix("probe.") for key in parse_assignments(cell.set)}
    own = {key: getattr(experiment.probe, key) for key in PROBED if key in probe.uses}
    if own.get("solver") == "lbfgs":  # which trains nothing, as no protocol says
        del own["protocol"]
    if probe.whole:  # which takes over what a sweep asks for, but nothing of a recipe's linear probe
        own = {key: value for key, value in own.items() if key not in ANEW}
        own |= {key: getattr(experiment.probe, key) for key in asked & ANEW.keys()}
    settings = {key: value for key, value in (own | said).items() if PROBED.get(key) != value}
    on = "fashion-mini" if cell.on and suffix == "-mini" else cell.on  # a mini needs no other images
    return Measure(cell.probe, tuple(sorted(settings.items())), on)


def _check_one_model(probe: str, experiment: Experiment) -> None:
    """Refuse what clients could not fine-tune together: a model for each of them, where there are several."""
    chosen = "algorithm" if experiment.algorithm.personalises else "topology"
    own = experiment.algorithm.personalises or not experiment.topology.has_server
    if own and experiment.clients != 1 and not isinstance(experiment.topology, Centralized):
        name = experiment.to_dict()[chosen]["name"]
        raise ConfigError(f'probe "{probe}" fine-tunes one model; with {chosen} = {name} each client has its own')


def _only_trained(experiment: Experiment) -> dict[str, Any]:
    """Changes after which two experiments that train alike are the same."""
    probe = experiment.to_dict()["probe"]
    usual = AFTERWARDS | PROBED
    return {f"probe.{key}": value for key, value in usual.items() if probe[key] != value}


def _folder(experiment: Experiment) -> str:
    """Such as byol-fedema-cifar10-s0-0123abcd: for people; the hash is what tells trainings apart."""
    chosen = experiment.to_dict()
    words = [chosen[table]["name"] for table in ("method", "algorithm", "topology", "data")]
    return "-".join([*(word for word in words if word != "star"), f"s{experiment.seed}", experiment.hash()[:8]])


def _sets(changes: Iterable[tuple[str, Any]]) -> list[str]:
    return [word for key, value in changes for word in ("--set", f"{key}={_toml(value)}")]


def _toml(value: Any) -> str:
    """As --set reads it; a plain word needs no quotes."""
    text = tomli_w.dumps({"v": value}).strip().removeprefix("v = ")
    bare = text.strip('"')
    return bare if isinstance(value, str) and parse_assignment(f"v={bare}") == ("v", value) else " ".join(text.split())


def passes(values: Mapping[str, Any]) -> float | None:
    """How many images an experiment of these plain values trains on, each time counted; None: nobody knows."""
    data, partition = values["data"], values.get("partition", {})
    images = IMAGES.get(data.get("path", data["name"]))
    if images is None:
        return None
    some = values.get("topology", {}).get("participation", 1) * partition.get("share", 1)
    epochs = values.get("train", {}).get("epochs", 1) * values.get("rounds", 100)
    return float(images * (1 - data.get("leave_out", 0)) * some * epochs)


IMAGES = {  # to train on; for estimates only
    "cifar10": 50_000,
    "cifar100": 50_000,
    "fashion-mnist": 60_000,
    "fashion-mini": 5_000,
    "tiny-imagenet": 100_000,
    "mini-imagenet": 50_000,
    "imagenet-100": 130_000,
}
