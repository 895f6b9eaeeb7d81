"""An experiment: one frozen, validated value = one whole run. TOML in, TOML out."""

from __future__ import annotations

import copy
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Self

import tomli_w
import torch
from pydantic import BeforeValidator, Field, PositiveInt, model_validator

import fedssl.algorithms
import fedssl.methods  # noqa: F401 - both register what they hold
from fedssl import nets
from fedssl.algorithm import ALGORITHMS, Algorithm
from fedssl.algorithms import FedAvg
from fedssl.data import PARTITIONS, SOURCES, Partition, Source
from fedssl.errors import ConfigError
from fedssl.method import METHODS, Method, MethodSettings
from fedssl.settings import Settings, suggest, validate
from fedssl.topology import TOPOLOGIES, Star, Topology
from fedssl.train import TrainSettings

_CHOICES: dict[str, Any] = {
    "data": SOURCES,
    "partition": PARTITIONS,
    "method": METHODS,
    "algorithm": ALGORITHMS,
    "topology": TOPOLOGIES,
}
_USUAL = {"partition": "iid", "algorithm": "fedavg", "topology": "star"}  # where a table names none
# What may change when a run goes on: nothing here changes what the model becomes, and more rounds only add to it.
HARMLESS = ("rounds", "probe", "train.workers", "train.checkpoint_every")


def _settings_class(table: str, name: Any) -> type[Settings]:
    if not isinstance(name, str):
        raise ConfigError(f"{table}.name is text (got {name!r})")
    cls: type[Any] = _CHOICES[table][name]
    return cls.Settings if issubclass(cls, Method) else cls


def _chosen(table: str) -> BeforeValidator:
    """Turn a table with a `name` into the settings that name stands for."""

    def choose(value: Any) -> Any:
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            return value
        rest = {key: v for key, v in value.items() if key != "name"}
        name = value.get("name", _USUAL.get(table))
        if name is None:
            raise ConfigError(f"[{table}] needs a name; known: {', '.join(_CHOICES[table].names())}")
        return validate(_settings_class(table, name), rest, table)

    return BeforeValidator(choose)


class ProbeSettings(Settings):
    """How the backbone is measured; labels are used here and nowhere else."""

    every: int = Field(10, ge=0)  # rounds between kNN measurements; 0: only at the end
    k: PositiveInt = 200
    temperature: float = Field(0.1, gt=0)
    linear: bool = True  # a linear probe at the end
    labels: int = Field(0, ge=0)  # labelled training images the linear probe may use, class-balanced; 0: all
    epochs: PositiveInt = 200
    lr: float = Field(3e-3, gt=0)
    batch: PositiveInt = 512
    picture: bool = False  # picture.png at the end: the kNN curve, a map of the test images before and after
    beside: tuple[str, ...] = ()  # measured the same way: "random" backbone, "isolated" or "centralized" training


class Experiment(Settings):
    seed: int = Field(0, ge=0)
    rounds: PositiveInt = 100
    clients: PositiveInt = 5
    data: Annotated[Source, _chosen("data")]
    partition: Annotated[Partition, _chosen("partition")] = Field(default_factory=lambda: PARTITIONS["iid"]())
    method: Annotated[MethodSettings, _chosen("method")]
    algorithm: Annotated[Algorithm, _chosen("algorithm")] = FedAvg()
    topology: Annotated[Topology, _chosen("topology")] = Star()
    train: TrainSettings = TrainSettings()
    probe: ProbeSettings = ProbeSettings()

    @model_validator(mode="after")
    def _known_company(self) -> Self:
        known = ("random", "isolated", "centralized")
        for name in self.probe.beside:
            if name not in known:
                raise ValueError(f'unknown comparison "{name}"{suggest(name, known)}')
        return self

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        return validate(cls, values)

    @classmethod
    def from_toml(cls, text: str, where: str = "experiment") -> Experiment:
        return cls.from_dict(parse_toml(text, where))

    @classmethod
    def from_file(cls, path: Path) -> Experiment:
        return cls.from_toml(_read(path), str(path))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, every default filled in; only what has no value is left out."""
        plain = {key: getattr(self, key) for key in ("seed", "rounds", "clients")}
        for table, registry in _CHOICES.items():
            chosen = getattr(self, table)
            owner = chosen.method if isinstance(chosen, MethodSettings) else type(chosen)
            plain[table] = {"name": registry.name_of(owner)} | _dump(chosen)
        return plain | {"train": _dump(self.train), "probe": _dump(self.probe)}

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())

    def hash(self) -> str:
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def with_changes(self, changes: Mapping[str, Any]) -> Experiment:
        """A copy with dotted keys replaced, e.g. {"algorithm.update": "both"}."""
        return Experiment.from_dict(merge_changes(self.to_dict(), changes))

    def check(self) -> None:
        """Refuse what cannot work before any image is read: the method is built without memory and asked."""
        with torch.device("meta"):
            method = self.method.method(self.method, nets.build(self.method.backbone, 3, self.method.stem), 32)
        if self.method.view_size is not None:
            method.views  # noqa: B018 - refuses a blur wider than the views
        missing = self.algorithm.requires - method.provides
        if missing:
            raise ConfigError(
                f'algorithm "{ALGORITHMS.name_of(type(self.algorithm))}" as set needs a method with a '
                f'{" and a ".join(sorted(missing))}; "{METHODS.name_of(type(method))}" as set has none'
            )
        if self.algorithm.needs_server and not self.topology.has_server:
            raise ConfigError(
                f'algorithm "{ALGORITHMS.name_of(type(self.algorithm))}" needs a server; '
                f'topology "{TOPOLOGIES.name_of(type(self.topology))}" has none'
            )
        if self.method.init is not None and not self.method.init.is_file():
            raise ConfigError(f"method.init: there is no file {self.method.init}")


def _dump(settings: Settings) -> dict[str, Any]:
    return settings.model_dump(mode="json", exclude_none=True)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}") from None


def parse_toml(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{where} is not valid TOML: {problem}") from None


def parse_assignment(text: str) -> tuple[str, Any]:
    """`key=value` with the value in TOML; a bare word is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f'"{text}" is not key=value')
    try:
        return key.strip(), tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def merge_changes(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Set dotted keys in nested tables. Choosing another `name` keeps the keys the new choice knows too."""
    merged: dict[str, Any] = copy.deepcopy(dict(values))
    # `method=byol` is short for `method.name=byol`, and keeps the rest of the table.
    changes = {f"{k}.name" if k in _CHOICES and isinstance(v, str) else k: v for k, v in changes.items()}
    for key in sorted(changes, key=lambda key: not key.endswith(".name")):  # names first: they decide what is known
        *path, leaf = key.split(".")
        table = merged
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f'"{key}": "{part}" is not a table')
        if leaf == "name" and path and path[0] in _CHOICES and len(path) == 1:
            known = _settings_class(path[0], changes[key]).model_fields
            for other in [other for other in table if other != "name" and other not in known]:
                del table[other]
        table[leaf] = changes[key]
    return merged


def differences(old: Experiment, new: Experiment) -> dict[str, tuple[Any, Any]]:
    """Dotted keys in which two experiments differ, with both values."""
    before, after = _flat(old.to_dict()), _flat(new.to_dict())
    keys = dict.fromkeys([*before, *after])
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def harmless(key: str) -> bool:
    return any(key == allowed or key.startswith(allowed + ".") for allowed in HARMLESS)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def recipes() -> dict[str, str]:
    """Every recipe that comes with the package: its name and its TOML text."""
    folder = resources.files("fedssl.recipes")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in files}


def load(name_or_file: str | Path, changes: Iterable[str] | Mapping[str, Any] = ()) -> Experiment:
    """The experiment in a TOML file, or the recipe of that name, with changes applied."""
    path, known = Path(name_or_file), recipes()
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise ConfigError(f"there is no file {path}")
        text = _read(path)
    elif str(name_or_file) in known:
        text = known[str(name_or_file)]
    else:
        hint = suggest(str(name_or_file), known) or f"; known: {', '.join(known)}"
        raise ConfigError(f'there is no recipe or file "{name_or_file}"{hint}')
    changed = dict(changes) if isinstance(changes, Mapping) else dict(map(parse_assignment, changes))
    experiment = Experiment.from_dict(merge_changes(parse_toml(text, str(name_or_file)), changed))
    experiment.check()
    return experiment
