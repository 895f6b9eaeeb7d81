"""Plan a table: the training and the measurement that each seed of each cell needs.

A training is stored in a folder named after the hash of its experiment, so that cells and tables
with the same training share it and a changed setting never meets old results. Settings that only
change the measurement are not part of that experiment: measurements are stored in the folder's
`measures`, in files named after the settings of the probe.
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

from fedssl.core.errors import ConfigError, FedsslError
from fedssl.core.user_modules import import_options, imported_modules
from fedssl.evaluation.probe_settings import check_protocol, check_suits, reset_settings
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.lookup import load_values
from fedssl.experiment.overrides import merge_changes
from fedssl.experiment.plain_values import parse_assignment, parse_assignments
from fedssl.paper_tables.published import LOGGED, Cell
from fedssl.probes import PROBES, ProbeSettings
from fedssl.topologies.topology import Centralized
from fedssl.training.trainer import resolve_precision

# Final measurements of a run other than kNN are switched off: the probes of the cells replace them.
# Other keys of [probe] are kept, because the rounds log or every probe depends on them.
NO_FINAL_PROBES: dict[str, Any] = {"linear": False, "baselines": [], "picture": False}
# Settings that only change the measurement, with their defaults.
PROBE_DEFAULTS: dict[str, Any] = {
    key: ProbeSettings.model_fields[key].default
    for key in ("labels", "protocol", "penalty", "solver", "frozen", "head")
}
# Training images of each data set; used for estimates only.
TRAINING_IMAGES = {
    "cifar10": 50_000,
    "cifar100": 50_000,
    "fashion-mnist": 60_000,
    "fashion-mini": 5_000,
    "tiny-imagenet": 100_000,
    "mini-imagenet": 50_000,
    "imagenet-100": 130_000,
}


@dataclass(frozen=True)
class Measure:
    """A probe with its settings, or a figure to read from the rounds log."""

    probe: str
    settings: tuple[tuple[str, Any], ...] = ()
    on: str | None = None

    @cached_property
    def file(self) -> str:
        """The name of its file in the folder of a training."""
        text = json.dumps([self.probe, dict(self.settings), self.on], sort_keys=True)
        return f"{self.probe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"


@dataclass(frozen=True, eq=False)
class Training:
    """One run: an experiment with its seed, and the name and changes it is made from.

    Two trainings are equal if their experiments are, whatever their names.
    """

    name: str  # of a recipe or variant, or of a TOML file
    changes: tuple[tuple[str, Any], ...]
    experiment: Experiment  # with the precision of the requested device
    folder: Path

    @cached_property
    def key(self) -> str:
        """The hash of the experiment."""
        return self.experiment.hash()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Training) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def run_command(self, device: str, data_dir: Path) -> list[str]:
        """Return the command of fedssl that trains."""
        changes = _set_options(self.changes)
        machine = _machine_options(device, data_dir)
        return ["run", self.name, *changes, "--dir", str(self.folder), *machine]

    def evaluate_command(self, measure: Measure, device: str, data_dir: Path) -> list[str]:
        """Return the command of fedssl that measures the trained model with a probe."""
        command = ["evaluate", str(self.folder), "--probe", measure.probe]
        if measure.on:
            command += ["--on", measure.on]
        return [*command, *_set_options(measure.settings), *_machine_options(device, data_dir)]

    def command(self, measure: Measure, device: str, data_dir: Path) -> str:
        """Return the shell command that produces the same figure."""
        run = shlex.join(["fedssl", *self.run_command(device, data_dir)])
        if measure.probe in LOGGED:
            return run
        evaluate = shlex.join(["fedssl", *self.evaluate_command(measure, device, data_dir)])
        return f"{run} && {evaluate}"


@dataclass(frozen=True)
class SeedPlan:
    """One seed of one cell; `problem` is the reason if it cannot be trained or measured."""

    cell: Cell
    seed: int
    training: Training | None
    measure: Measure | None
    problem: str | None = None


def plan_seeds(
    cells: Iterable[Cell], suffix: str, seeds: Iterable[int], root: Path, device: torch.device
) -> Iterator[SeedPlan]:
    """Yield the plan of every seed of every cell.

    `suffix` selects the variant of the recipes: "", "-short" or "-mini".
    """
    seeds = list(seeds)
    for cell in cells:
        for seed in seeds:
            try:
                training, measure = _resolve(cell, suffix, seed, root=root, device=device)
            except FedsslError as problem:
                yield SeedPlan(cell, seed, None, None, problem=cell.cannot or str(problem))
            else:
                yield SeedPlan(cell, seed, training, measure, problem=cell.cannot)


def _resolve(
    cell: Cell, suffix: str, seed: int, *, root: Path, device: torch.device
) -> tuple[Training, Measure]:
    name = cell.recipe + suffix
    values = load_values(name)
    cell_changes = parse_assignments(cell.set)
    if "seed" in cell_changes:
        raise ConfigError("--set cannot change the seed: give the number of seeds with --seeds")
    requested = Experiment.from_dict(merge_changes(values, cell_changes))
    measure = _resolve_measure(cell, requested, suffix)
    changes = cell_changes | {"seed": seed} | _reset_probe(requested)
    experiment = Experiment.from_dict(merge_changes(values, changes))
    precision = resolve_precision(experiment.train.precision, device)
    experiment = experiment.with_changes({"train.precision": precision})
    folder = root / _folder_name(experiment)
    return Training(name, tuple(changes.items()), experiment, folder=folder), measure


def _resolve_measure(cell: Cell, experiment: Experiment, suffix: str) -> Measure:
    """Return the probe with the settings that differ from their defaults.

    The training's folder has the defaults, so the measurement depends on no other cell that shares
    the training.
    """
    cell_settings = _without_probe_prefix(parse_assignments(cell.settings))
    if cell.probe in LOGGED:
        return Measure(cell.probe, tuple(cell_settings.items()))
    check_suits(cell.probe, experiment)
    probe = PROBES[cell.probe]
    if probe.together:
        _check_one_model(cell.probe, experiment)
    settings = {}
    for key in PROBE_DEFAULTS:
        if key in probe.uses:
            settings[key] = getattr(experiment.probe, key)
    if settings.get("solver") == "lbfgs":  # the exact solver trains nothing: no protocol applies
        del settings["protocol"]
    # A recipe's settings are those of its linear probe: only changes by the cell apply.
    reset = reset_settings(cell.probe)
    requested = _without_probe_prefix(parse_assignments(cell.set))
    for key in reset:
        settings.pop(key, None)
    for key in requested.keys() & reset.keys():
        settings[key] = getattr(experiment.probe, key)
    settings |= cell_settings
    defaults = PROBE_DEFAULTS | reset
    check_protocol(cell.probe, settings.get("protocol", defaults["protocol"]))
    changed = []
    for key, value in sorted(settings.items()):
        if defaults.get(key) != value:
            changed.append((key, value))
    on = cell.on
    if on and suffix == "-mini":  # a mini needs no other images
        on = "fashion-mini"
    return Measure(cell.probe, tuple(changed), on)


def _without_probe_prefix(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("probe."): value for key, value in settings.items()}


def _check_one_model(probe: str, experiment: Experiment) -> None:
    """Raise ConfigError if clients end with models of their own: they fine-tune one together."""
    personal = experiment.algorithm.measures_clients
    own_models = personal or not experiment.topology.has_server
    centralized = isinstance(experiment.topology, Centralized)
    if own_models and experiment.clients != 1 and not centralized:
        cause = "algorithm" if personal else "topology"
        name = experiment.to_dict()[cause]["name"]
        raise ConfigError(
            f'probe "{probe}" fine-tunes one model; with {cause} = {name} each client has its own: '
            "choose another probe"
        )


def _reset_probe(experiment: Experiment) -> dict[str, Any]:
    """Return the changes that make two experiments with the same training equal."""
    probe = experiment.to_dict()["probe"]
    defaults = NO_FINAL_PROBES | PROBE_DEFAULTS
    changes = {}
    for key, value in defaults.items():
        if probe.get(key) != value:
            changes[f"probe.{key}"] = value
    return changes


def _folder_name(experiment: Experiment) -> str:
    """Return e.g. byol-fedema-cifar10-s0-0123abcd: words for readers, the hash to be unique."""
    values = experiment.to_dict()
    words = []
    for table in ("method", "algorithm", "topology", "data"):
        name = values[table]["name"]
        if name != "star":
            words.append(name)
    return "-".join([*words, f"s{experiment.seed}", experiment.hash()[:8]])


def _machine_options(device: str, data_dir: Path) -> list[str]:
    options = ["--device", device]
    if data_dir != Path("data"):
        options += ["--data-dir", str(data_dir)]
    return [*options, *import_options(imported_modules())]


def _set_options(changes: Iterable[tuple[str, Any]]) -> list[str]:
    words = []
    for key, value in changes:
        words += ["--set", f"{key}={_format_value(value)}"]
    return words


def _format_value(value: Any) -> str:
    """Return a value as --set reads it; a plain word needs no quotes."""
    text = tomli_w.dumps({"v": value}).strip().removeprefix("v = ")
    bare = text.strip('"')
    if isinstance(value, str) and parse_assignment(f"v={bare}") == ("v", value):
        return bare
    return " ".join(text.split())


def image_passes(values: Mapping[str, Any]) -> float | None:
    """Return how many images an experiment trains on, counting every pass.

    `values` are the plain values of the experiment. None if the size of its data set is unknown.
    """
    data = values["data"]
    images = TRAINING_IMAGES.get(data.get("path", data["name"]))
    if images is None:
        return None
    participation = values.get("topology", {}).get("participation", 1)
    share = participation * values.get("partition", {}).get("share", 1)
    epochs = values.get("train", {}).get("epochs", 1) * values.get("rounds", 100)
    return float(images * (1 - data.get("leave_out", 0)) * share * epochs)
