"""An experiment: one frozen, validated value = one whole run. TOML in, TOML out."""

from __future__ import annotations

import hashlib
import json
import re
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
from fedssl.changes import (
    CHOICES,
    USUAL,
    check_depth,
    dump,
    merge_changes,
    parse_assignments,
    settings_class,
)
from fedssl.data import PARTITIONS, HeldOut, Partition, Public, Source
from fedssl.errors import ConfigError, is_out_of_memory
from fedssl.method import METHODS, Method, MethodSettings
from fedssl.probes import ProbeSettings
from fedssl.settings import Settings, Unknown, explain, suggest, validate
from fedssl.topology import TOPOLOGIES, Star, Topology
from fedssl.train import TrainSettings
from fedssl.variants import find

# Settings that earlier versions did not have, by table: at its default, none of them changes an experiment's hash.
ADDED_LATER = {"guard": ("statistics_bound", "max_share"), "probe": ("frozen",)}
MOST_PARAMETERS = 2_000_000_000  # 8 GB in float32; a ResNet-50 with the papers' heads has 50 million
MOST_TOML_BYTES = 1_000_000
MOST_DOTS = 100  # of a key


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
    seed: int = Field(0, ge=0, lt=2**63)
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
        """Return a hash that identifies the experiment. Settings added later are left out at their defaults;
        `min_uploads` is always left out, so that a run can be resumed with another value."""
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
        method = self._without_memory()
        _check_model_size(method)
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
            check_uploads(self.topology.participants(self.clients), self.clients, self.min_uploads)
        if self.method.init is not None and not self.method.init.is_file():
            raise ConfigError(f"method.init: there is no file {self.method.init}")

    def _without_memory(self) -> Method:
        """The method with shapes and no numbers."""
        try:
            with nets.unfilled():
                backbone = nets.build(self.method.backbone, 3, self.method.stem)
                return self.method.method(self.method, backbone, 224)
        except RuntimeError as problem:
            if not is_out_of_memory(problem):
                raise
            raise ConfigError("the model is too large for any memory: lower the sizes under [method]") from None

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


def _check_model_size(method: Method) -> None:
    """Refuse a model that no supported machine could train, before memory is allocated for it."""
    count = sum(tensor.numel() for tensor in (*method.parameters(), *method.buffers()))
    if count > MOST_PARAMETERS:
        raise ConfigError(
            f"the model would have {count:,} parameters, more than the {MOST_PARAMETERS:,} that are supported: lower "
            "the sizes under [method]"
        )


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_TOML_BYTES:
            raise ConfigError(f"{path} is larger than {MOST_TOML_BYTES:,} bytes: it is not an experiment")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}") from None


def _most_dots(text: str) -> int:
    """The number of dots in the longest dotted key, or in what looks like one."""
    bare = re.sub(r"\"[^\"\n]*\"|'[^'\n]*'|#[^\n]*", "", text)  # without strings and comments
    words = re.split(r"[=\[\]{},\n]", bare.replace(" ", "").replace("\t", ""))
    return max(word.count(".") for word in words)


def parse_toml(text: str, where: str) -> dict[str, Any]:
    if _most_dots(text) > MOST_DOTS:  # tomllib takes time with the square of them
        raise ConfigError(f"{where} is nested too deeply")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply") from None
    except ValueError as problem:  # also an integer of more than 4,300 digits
        raise ConfigError(f"{where} is not valid TOML: {problem}") from None
    check_depth(values, where)
    return values


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
