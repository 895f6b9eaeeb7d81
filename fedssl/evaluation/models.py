"""The models of a run by name: those that sites export, and clients' own. Backbone files."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from fedssl import nets
from fedssl.algorithm import Sites
from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError, RunError
from fedssl.core.files.purge_note import purged_at
from fedssl.core.state.mean import Mean
from fedssl.core.state.state import State
from fedssl.core.state.tree import to_device
from fedssl.core.version import __version__
from fedssl.data.folder import Folder
from fedssl.engine.checkpoints.client_memory import StoredMemory
from fedssl.engine.checkpoints.store import Store
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.trained_backbone import TrainedBackbones
from fedssl.topologies.topology import MEAN

NOTHING: Mapping[str, StoredMemory] = MappingProxyType({})


class PersonalModels(Mapping[str, State]):
    """Clients' own models, for the clients that have one; `make` returns a client's model or None.

    A client has a model if its stored state contains one, and reading that state may need the
    disk. So nothing is read before it is needed, and the last model is cached: an iteration over
    all models reads the state of each client once.
    """

    def __init__(self, clients: Sequence[str], make: Callable[[str], State | None]) -> None:
        self._make = lru_cache(maxsize=1)(make)
        self._has: dict[str, bool | None] = dict.fromkeys(clients)  # None: not read yet

    def __getitem__(self, client: str) -> State:
        if client not in self:
            raise KeyError(client)
        state = self._make(client)
        assert state is not None
        return state

    def __contains__(self, client: object) -> bool:
        if not isinstance(client, str) or client not in self._has:
            return False
        if self._has[client] is None:
            self._has[client] = self._make(client) is not None
        return bool(self._has[client])

    def __iter__(self) -> Iterator[str]:
        return (client for client in self._has if client in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)  # stops at the first


class Models(Mapping[str, State]):
    """Models by name. A client's own is built when it is looked up: there may be many of them.

    Models in `excluded` are measured too, but do not count in the mean over models.
    """

    def __init__(
        self, personal: Mapping[str, State], shared: Mapping[str, State], excluded: Collection[str]
    ) -> None:
        self._personal = personal
        self._shared = shared
        self.excluded = frozenset(excluded)

    def __getitem__(self, name: str) -> State:
        if name in self._shared:
            return self._shared[name]
        return self._personal[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._personal
        yield from self._shared

    def __contains__(self, name: object) -> bool:
        return name in self._shared or name in self._personal

    def __len__(self) -> int:
        return len(self._personal) + len(self._shared)

    def __bool__(self) -> bool:
        return bool(self._shared) or bool(self._personal)


def models_of(
    experiment: Experiment,
    sites: Sites,
    memory: Mapping[str, StoredMemory] = NOTHING,
    device: torch.device | str = "cpu",
) -> Models:
    """Return all models of a run; `memory` is the state of clients, `device` that of the sites.

    With an algorithm that measures clients: each client's own model, by client, and, excluded from
    the mean, the models that sites export. With other algorithms, and while no client has its own:
    the models that sites export, `global` with one server, else by site; with peers also their
    `mean`, which is excluded.
    """
    personal = _personal_models(experiment, sites, memory, device)
    exported = {site: experiment.algorithm.export(tree) for site, tree in sites.items()}
    peers = experiment.topology.consensus and len(sites) > 1
    if not personal:
        if peers:
            exported[MEAN] = _mean_of(list(exported.values()))
        shared = _named(exported, single=len(sites) == 1, taken=NOTHING)
        means = [name for name in shared if peers and name.partition("/")[0] == MEAN]
        return Models(personal, shared, excluded=means)
    if peers:
        exported = {MEAN: _mean_of(list(exported.values()))}
    shared = _named(exported, single=len(sites) == 1, taken=memory)
    return Models(personal, shared, excluded=list(shared))


def _named(
    exported: Mapping[str, Mapping[str, State]], single: bool, taken: Collection[str]
) -> dict[str, State]:
    """Return the exported models by the shortest name that is unique and not taken by a client.

    That is MODEL with a single site, SITE if each site exports one model, else SITE/MODEL.
    """
    names = {}
    for site, models in exported.items():
        for model, state in models.items():
            name = f"{site}/{model}"
            if single and model not in taken:
                name = model
            elif not single and len(models) == 1 and site not in taken:
                name = site
            names[name] = state
    return names


def saved_models(experiment: Experiment, folder: Path, notify: Notify) -> Models:
    """Return the models in the newest checkpoint of a run directory."""
    snapshot = Store(folder).load(notify, check_rows=False)
    if snapshot is None:
        at = purged_at(folder)
        if at is not None:
            raise ConfigError(
                f"{folder} has no checkpoint any more: `fedssl purge` removed it ({at}). "
                "Use its exported backbone"
            )
        if (folder / "results.json").is_file():
            raise ConfigError(
                f"{folder} has no checkpoint any more: restore its folder checkpoints from a backup"
            )
        raise ConfigError(f"{folder} has no checkpoint yet: start its training with `fedssl run`")
    return models_of(experiment, snapshot.sites, snapshot.memory)


def _personal_models(
    experiment: Experiment,
    sites: Sites,
    memory: Mapping[str, StoredMemory],
    device: torch.device | str,
) -> Mapping[str, State]:
    """Return clients' own models; empty if they are not to be measured.

    With [privacy] they are not: noise hides a client's images in the models of sites only.
    """
    algorithm = experiment.algorithm
    if not algorithm.measures_clients or experiment.privacy.enabled:
        return {}

    def personal(client: str) -> State | None:
        site = sites.get(client)  # of a peer
        if site is None:
            site = next(iter(sites.values()))
        try:
            state = memory[client].tree
        except (OSError, ValueError) as problem:  # deleted, damaged, or replaced by a running run
            raise RunError(
                f"the model of client {client} cannot be built, since its stored state cannot be "
                f"read: {problem}"
            ) from problem
        return algorithm.personal(algorithm.broadcast(site, client), to_device(state, device))

    return PersonalModels(sorted(memory), personal)


def _mean_of(exported: Sequence[Mapping[str, State]]) -> dict[str, State]:
    """Return the unweighted mean over sites of each model; counters keep the largest."""
    means = {name: Mean() for name in exported[0]}
    for models in exported:
        for name, mean in means.items():
            mean.add(models[name], 1.0)
    return {name: mean.result() for name, mean in means.items()}


def export(
    experiment: Experiment,
    folder: Path,
    models: Mapping[str, State],
    image: tuple[int, int, int],
    rounds: int,
    notes: list[str],
    *,
    privacy: Mapping[str, Any] | None = None,
) -> None:
    """Write backbone.safetensors, or backbone-MODEL.safetensors for each of several models."""
    method = experiment.to_dict()["method"]
    header = {
        "format": "pt",
        "fedssl": __version__,
        "experiment": experiment.hash(),
        "method": method["name"],
        "backbone": method["backbone"],
        "stem": method["stem"],
        "rounds": str(rounds),
        "notes": "; ".join(notes),
        "image": json.dumps(image),
        "mean": json.dumps(experiment.data.mean),
        "std": json.dumps(experiment.data.std),
        "input": "pixels / 255, then (x - mean) / std where mean is given; eval mode",
    }
    if experiment.method.norm != "batch":  # without this key, files have BatchNorm
        header["norm"] = experiment.method.norm
    if privacy is not None:
        header["privacy"] = json.dumps(privacy)
    if isinstance(experiment.data, Folder):  # earlier versions wrote these only for "pad"
        header |= {"fit": experiment.data.fit, "background": experiment.data.background}
    backbones = TrainedBackbones(experiment, image[0])
    for name, state in models.items():
        file = "backbone.safetensors" if len(models) == 1 else nets.backbone_file(name)
        nets.save_backbone(backbones.tensors(state), folder / file, header | {"model": name})
