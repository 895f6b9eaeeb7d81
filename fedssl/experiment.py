"""An experiment: one frozen, validated value = one whole run. TOML in, TOML out."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import tomli_w
from pydantic import BeforeValidator, Field, PositiveInt, ValidationError, model_validator

from fedssl import nets
from fedssl.algorithm import ALGORITHMS, Algorithm
from fedssl.algorithms import FedAvg
from fedssl.bound import GuardSettings
from fedssl.changes import CHOICES, USUAL, dump, merge_changes, parse_assignments, settings_class
from fedssl.data import PARTITIONS, HeldOut, Partition, Public, Source
from fedssl.errors import ConfigError
from fedssl.method import METHODS, MethodSettings
from fedssl.probes import ProbeSettings
from fedssl.settings import Settings, Unknown, explain, suggest, validate
from fedssl.topology import TOPOLOGIES, Star, Topology
from fedssl.train import TrainSettings
from fedssl.variants import find

# Settings that earlier versions did not have, by table: at its default, none of them changes an experiment's hash.
ADDED_LATER = {"guard": ("statistics_bound", "max_share"), "probe": ("frozen",)}


def _chosen(table: str) -> BeforeValidator:
    """Turn a table with a `name` into the settings that name stands for."""

    def choose(value: Any) -> Any:
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            return value
        rest = {key: v for key, v in value.items() if key != "name"}
        name = value.get("name", USUAL.get(table))
        if name is None:
            raise ConfigError(f"[{table}] needs a name; known: {', '.join(CHOICES[table].names())}")
        return validate(settings_class(table, name), rest, table)

    return BeforeValidator(choose)


class Experiment(Settings):
    seed: int = Field(0, ge=0)
    rounds: PositiveInt = 100
    clients: int = Field(0, ge=0)  # 0: as many as a natural or listed partition brings
    data: Annotated[Source, _chosen("data")]
    partition: Annotated[Partition, _chosen("partition")] = Field(default_factory=lambda: PARTITIONS["iid"]())
    method: Annotated[MethodSettings, _chosen("method")]
    algorithm: Annotated[Algorithm, _chosen("algorithm")] = FedAvg()
    topology: Annotated[Topology, _chosen("topology")] = Star()
    public: Annotated[Public, _chosen("public")] = HeldOut()
    train: TrainSettings = TrainSettings()
    guard: GuardSettings = GuardSettings()
    probe: ProbeSettings = ProbeSettings()

    @model_validator(mode="after")
    def _enough_clients(self) -> Self:
        if not self.clients and not self.partition.brings_clients:
            raise ValueError("clients must be a number above 0: this partition does not bring its own")
        return self

    @model_validator(mode="after")
    def _known_company(self) -> Self:
        known = ("random", "isolated", "centralized")
        for name in self.probe.beside:
            if name not in known:
                raise ValueError(f'unknown comparison "{name}"{suggest(name, known)}')
        return self

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as failure:
            raise ConfigError(explain(type(self), failure)) from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        return validate(cls, values)

    @classmethod
    def from_toml(cls, text: str, where: str = "experiment") -> Experiment:
        return cls.from_dict(parse_toml(text, where))

    @classmethod
    def from_file(cls, path: Path) -> Experiment:
        """One that was run: a name in it was known then."""
        try:
            return cls.from_toml(_read(path), str(path))
        except Unknown as problem:
            raise ConfigError(
                f"{path}: {problem} (one of yours must be known here: in Python, import the module that registers it "
                "before fedssl is asked for the run; for the command line, install it as a plugin, with the entry "
                f'point "{problem.name}" in the group "{problem.group}")'
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, every default filled in; only what has no value is left out, and public images that nobody has
        asked for."""
        plain = {key: getattr(self, key) for key in ("seed", "rounds", "clients")}
        for table, registry in CHOICES.items():
            chosen = getattr(self, table)
            owner = chosen.method if isinstance(chosen, MethodSettings) else type(chosen)
            plain[table] = {"name": registry.name_of(owner)} | dump(chosen)
        if not self.algorithm.needs_public and self.public == HeldOut():
            del plain["public"]
        return plain | {"train": dump(self.train), "guard": dump(self.guard), "probe": dump(self.probe)}

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())

    @property
    def min_uploads(self) -> int:
        """Valid uploads that a merge needs. Peers, and one client that holds all images, are exempt."""
        return self.guard.min_uploads if self.topology.has_server and self.topology.merges else 1

    def hash(self) -> str:
        """Identify the experiment. Settings that were added later are left out at their defaults, and `min_uploads`
        always: it decides whether a round counts, and never what it makes of a model."""
        plain = self.to_dict()
        if self.guard.model_copy(update={"min_uploads": 2}) == GuardSettings():
            del plain["guard"]
        else:
            del plain["guard"]["min_uploads"]
        for table, keys in ADDED_LATER.items():
            settings = getattr(self, table)
            for key in keys:
                if getattr(settings, key) == type(settings).model_fields[key].default:
                    plain.get(table, {}).pop(key, None)
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def with_changes(self, changes: Mapping[str, Any]) -> Experiment:
        """A copy with dotted keys replaced, e.g. {"algorithm.update": "both"}."""
        return Experiment.from_dict(merge_changes(self.to_dict(), changes))

    def check(self) -> None:
        """Refuse what cannot work before any image is read: the method is built without memory and asked."""
        with nets.unfilled():
            method = self.method.method(self.method, nets.build(self.method.backbone, 3, self.method.stem), 224)
        if self.method.view_size is not None:
            method.views  # noqa: B018 - refuses a blur wider than the views
        missing = self.algorithm.requires - method.provides
        if missing:
            raise ConfigError(
                f'algorithm "{ALGORITHMS.name_of(type(self.algorithm))}" as set needs a method with a '
                f'{" and a ".join(sorted(missing))}; "{METHODS.name_of(type(method))}" as set has none'
            )
        if self.algorithm.needs_pairs and [group.count for group in method.views] != [2]:
            raise ConfigError(
                f'algorithm "{ALGORITHMS.name_of(type(self.algorithm))}" needs a method with two views of each image, '
                f'of one kind; "{METHODS.name_of(type(method))}" as set has others'
            )
        if self.algorithm.needs_server and not self.topology.has_server:
            raise ConfigError(
                f'algorithm "{ALGORITHMS.name_of(type(self.algorithm))}" needs a server; '
                f'topology "{TOPOLOGIES.name_of(type(self.topology))}" has none'
            )
        for name in self.probe.beside:  # "random" is a backbone here, not the graph of that name
            if self.algorithm.needs_server and name != "random" and not TOPOLOGIES[name].has_server:
                raise ConfigError(f'probe.beside: the algorithm needs a server, "{name}" has none')
        if self.algorithm.needs_public and self._is_public():
            raise ConfigError(
                "[public] names the images of [data] itself: leave the table out to hold some of them out"
            )
        if self.clients and self.topology.has_server:
            plan = self.topology.plan([str(number) for number in range(self.clients)], 0, self.seed)
            check_uploads(len(plan.home), self.clients, self.min_uploads)
        if self.method.init is not None and not self.method.init.is_file():
            raise ConfigError(f"method.init: there is no file {self.method.init}")

    def _is_public(self) -> bool:
        """Whether the clients' own images are the public ones."""
        tables = self.to_dict()
        return all(tables["data"].get(key) == tables["public"].get(key) for key in ("name", "path", "part"))


def check_uploads(asked: int, clients: int, needed: int) -> None:
    """Reject a plan that asks fewer clients in a round than a server needs uploads from."""
    if asked < needed:
        raise ConfigError(
            f"each round asks {asked} of {clients} clients, but a server needs {needed} valid uploads to merge: raise "
            f"clients or topology.participation, or set guard.min_uploads = {asked}"
        )


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


def load(name_or_file: str | Path, changes: Iterable[str] | Mapping[str, Any] = ()) -> Experiment:
    """The experiment in a TOML file, or the recipe or variant of that name, with changes applied."""
    changed = changes if isinstance(changes, Mapping) else parse_assignments(changes)
    experiment = Experiment.from_dict(merge_changes(plain_values(name_or_file), changed))
    experiment.check()
    return experiment


def plain_values(name_or_file: str | Path) -> dict[str, Any]:
    """What a TOML file says, or the recipe or variant of that name: without defaults, not yet checked."""
    path = Path(name_or_file)
    if path.suffix != ".toml" and not path.is_file():
        return find(str(name_or_file))
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    return parse_toml(_read(path), str(path))
