"""An experiment: all settings of one run, as one frozen, validated value; to and from TOML."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import tomli_w
from pydantic import BeforeValidator, Field, PositiveInt, ValidationError, model_validator

from fedssl import nets
from fedssl.algorithm import ALGORITHMS, Algorithm
from fedssl.algorithms import FedAvg
from fedssl.core.errors import ConfigError, is_out_of_memory
from fedssl.core.settings import Settings, UnknownNameError, explain, known_keys, validate
from fedssl.core.suggestions import suggest
from fedssl.core.user_modules import missing_options
from fedssl.data import PARTITIONS, HeldOut, Partition, Public, Source
from fedssl.engine.means.mean_settings import MeanSettings, WeightedMean
from fedssl.engine.privacy.settings import NO_PRIVACY, PrivacySettings
from fedssl.engine.uploads.settings import GuardSettings
from fedssl.experiment.baseline_names import BASELINES, UNTRAINED
from fedssl.experiment.hashed_settings import hashed_settings
from fedssl.experiment.init_file import check_init_exists
from fedssl.experiment.lookup import load_values
from fedssl.experiment.merge_checks import check_mean, check_uploads
from fedssl.experiment.model_size import check_model_size
from fedssl.experiment.overrides import (
    CHOICES,
    DEFAULT_NAMES,
    dump,
    known_choices,
    merge_changes,
    settings_class,
)
from fedssl.experiment.plain_values import parse_assignments, parse_toml, read_text
from fedssl.experiment.privacy_check import check_privacy
from fedssl.method import METHODS, Method, MethodSettings
from fedssl.probes import ProbeSettings
from fedssl.topologies.topology import TOPOLOGIES, Star, Topology
from fedssl.training.settings import TrainSettings


def _chosen(table: str) -> BeforeValidator:
    """Return a validator that turns a table with a `name` into the settings of that choice."""

    def choose(value: Any) -> Any:
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            return value
        settings = dict(value)
        name = settings.pop("name", DEFAULT_NAMES.get(table))
        if name is None:
            raise ConfigError(f"[{table}] needs a name; known: {', '.join(CHOICES[table].names())}")
        return validate(settings_class(table, name), settings, table)

    return BeforeValidator(choose)


class Experiment(Settings):
    """All settings of one run, as a frozen, validated value.

    `Experiment.from_dict({"clients": 5, "data": "fashion-mini", "method": "byol"})` fills in every
    default. Keys that choose a class by `name` take the name alone or a table. Raises ConfigError
    for an unknown key or name, with the nearest known one, and for a value of the wrong type.
    """

    seed: int = Field(0, ge=0, lt=2**63)
    rounds: PositiveInt = 100
    clients: int = Field(0, ge=0)  # 0: as many as a natural or listed partition has
    data: Annotated[Source, _chosen("data")]
    partition: Annotated[Partition, _chosen("partition")] = Field(
        default_factory=lambda: PARTITIONS["iid"]()
    )
    method: Annotated[MethodSettings, _chosen("method")]
    algorithm: Annotated[Algorithm, _chosen("algorithm")] = FedAvg()
    topology: Annotated[Topology, _chosen("topology")] = Star()
    mean: Annotated[MeanSettings, _chosen("mean")] = WeightedMean()
    public: Annotated[Public, _chosen("public")] = HeldOut()
    train: TrainSettings = TrainSettings()
    guard: GuardSettings = GuardSettings()
    privacy: PrivacySettings = NO_PRIVACY
    probe: ProbeSettings = ProbeSettings()

    @model_validator(mode="after")
    def _enough_clients(self) -> Self:
        if not self.clients and not self.partition.brings_clients:
            raise ValueError(
                "clients must be above 0, since this partition does not define the clients: add "
                "--set clients=8, for example"
            )
        return self

    @model_validator(mode="after")
    def _known_baselines(self) -> Self:
        for name in self.probe.baselines or ():
            if name not in BASELINES:
                raise ValueError(
                    f'probe.baselines: unknown baseline "{name}"{suggest(name, BASELINES)}'
                )
        return self

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as failure:
            known = known_keys(type(self)) | known_choices(values)
            raise explain(type(self), failure, elsewhere=known) from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        """Return the experiment with these plain values; raise ConfigError if they are invalid."""
        return cls(**values)

    @classmethod
    def from_toml(cls, text: str, where: str = "experiment") -> Experiment:
        """Return the experiment in a TOML document; errors name it as `where`."""
        return cls.from_dict(parse_toml(text, where))

    @classmethod
    def from_file(cls, path: Path) -> Experiment:
        """Return the experiment of a run. Its names were registered when it was started."""
        try:
            return cls.from_toml(read_text(path), str(path))
        except UnknownNameError as problem:
            raise ConfigError(f"{path}: {_where_defined(problem, path.parent)}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values with every default filled in.

        Settings without a value are left out, and so are `privacy` if it is off, and `public` at
        its default if the algorithm needs no public images.
        """
        plain: dict[str, Any] = {
            "seed": self.seed,
            "rounds": self.rounds,
            "clients": self.clients,
        }
        for table, registry in CHOICES.items():
            settings = getattr(self, table)
            chosen = settings.method if isinstance(settings, MethodSettings) else type(settings)
            plain[table] = {"name": registry.name_of(chosen)} | dump(settings)
        if not self.algorithm.needs_public and self.public == HeldOut():
            del plain["public"]
        plain["train"] = dump(self.train)
        plain["guard"] = dump(self.guard)
        if self.privacy.enabled:
            plain["privacy"] = dump(self.privacy)
        plain["probe"] = dump(self.probe)
        return plain

    def to_toml(self) -> str:
        """Return a TOML document with every default filled in."""
        return tomli_w.dumps(self.to_dict())

    @property
    def min_uploads(self) -> int:
        """Valid uploads that a merge needs: 1 for peers and for one client with all images."""
        if self.topology.has_server and self.topology.merges:
            return self.guard.min_uploads
        return 1

    def hash(self) -> str:
        """Return a hash that identifies the experiment.

        It is that of the same experiment in earlier versions.
        """
        plain = self.to_dict()
        for table in plain:
            settings = getattr(self, table)
            if isinstance(settings, Settings):
                plain[table] = hashed_settings(table, settings, plain[table])
        if self.guard.model_copy(update={"min_uploads": 2}) == GuardSettings():
            del plain["guard"]
        if self.mean == WeightedMean():
            del plain["mean"]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def with_changes(self, changes: Mapping[str, Any]) -> Experiment:
        """Return a copy with dotted keys replaced, e.g. {"algorithm.update": "both"}."""
        return Experiment.from_dict(merge_changes(self.to_dict(), changes))

    def check(self) -> None:
        """Raise ConfigError if the settings do not fit together. Reads no images.

        The method is built without memory, to look at its size, parts and views.
        """
        method = self.method_without_memory()
        check_model_size(method)
        if self.method.view_size is not None:
            method.views  # noqa: B018 - raises if a blur is wider than the views
        self._check_method(method)
        self._check_topology()
        named = self.probe.baselines or ()
        check_privacy(
            self.privacy, self.topology, self.algorithm, method, clients=self.clients, named=named
        )
        if self.algorithm.needs_public and self._is_public():
            raise ConfigError(
                "[public] and [data] are the same images, but clients train on private images: "
                "leave out [public] to set some images of [data] aside as public"
            )
        check_mean(self.mean, self.algorithm, self.topology, self.privacy)
        if self.clients and self.topology.has_server:
            participants = self.topology.participants(self.clients)
            check_uploads(participants, self.clients, self.min_uploads, self.mean)
        check_init_exists(self.method)

    def _check_method(self, method: Method) -> None:
        """Raise ConfigError if the algorithm needs parts or views that the method does not have."""
        missing = self.algorithm.requires - method.provides
        if missing:
            raise ConfigError(
                f'algorithm "{self._algorithm_name}" needs a method with a '
                f"{' and a '.join(sorted(missing))}, but method "
                f'"{METHODS.name_of(type(method))}" has none with these settings. Choose another '
                "method or algorithm: "
                "`fedssl combinations` lists those that fit"
            )
        views = [group.count for group in method.views]
        if self.algorithm.needs_pairs and views != [2]:
            counts = " + ".join(map(str, views)) or "0"
            raise ConfigError(
                f'algorithm "{self._algorithm_name}" needs a method that makes exactly two views '
                "of each image, both with the same size and augmentation; method "
                f'"{METHODS.name_of(type(method))}" makes {counts}'
            )

    @property
    def _algorithm_name(self) -> str:
        return ALGORITHMS.name_of(type(self.algorithm))

    def _check_topology(self) -> None:
        """Raise ConfigError if the algorithm needs a server and a topology has none."""
        if not self.algorithm.needs_server:
            return
        if not self.topology.has_server:
            raise ConfigError(
                f'algorithm "{self._algorithm_name}" needs a server; '
                f'topology "{TOPOLOGIES.name_of(type(self.topology))}" has none: choose "star"'
            )
        for name in self.probe.baselines or ():
            # Here "random" is an untrained backbone, not the graph of that name.
            if name not in UNTRAINED and not TOPOLOGIES[name].has_server:
                raise ConfigError(
                    f'baseline "{name}" has no server, but algorithm "{self._algorithm_name}" '
                    "needs one: remove it from probe.baselines"
                )

    def method_without_memory(self) -> Method:
        """Return the method with the shapes of its tensors but without their memory."""
        try:
            with nets.uninitialized():
                backbone = nets.build(self.method.backbone, 3, self.method.stem, self.method.norm)
                return self.method.make(backbone, 224)
        except RuntimeError as problem:
            if not is_out_of_memory(problem):
                raise
            raise ConfigError(
                "the model is too large for any machine: lower the sizes under [method]"
            ) from None

    def _is_public(self) -> bool:
        """True if [public] and [data] are the same images."""
        tables = self.to_dict()
        data = tables["data"]
        public = tables["public"]
        return all(data.get(key) == public.get(key) for key in ("name", "path", "part"))


def _where_defined(problem: UnknownNameError, folder: Path) -> str:
    """Return the error for an unknown name in a run directory, with the module to import."""
    options = missing_options(folder)
    if options:
        return (
            f'unknown {problem.noun} "{problem.name}"; the run was started with a module of its '
            f"user: add {options}, or in Python import that module before you open the run"
        )
    return (
        f"{problem} (if it is your own: add --import FILE with the module that registers it, or in "
        "Python import that module before you open the run)"
    )


def load(name_or_file: str | Path, changes: Iterable[str] | Mapping[str, Any] = ()) -> Experiment:
    """Return the experiment in a TOML file, or the recipe or variant of that name, with changes."""
    if not isinstance(changes, Mapping):
        changes = parse_assignments(changes)
    experiment = Experiment.from_dict(merge_changes(load_values(name_or_file), changes))
    experiment.check()
    return experiment
