"""The models a run has to show, by name: what its sites export, and each client's own where an algorithm makes them;
and their backbones as files for others to use."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import torch

import fedssl
from fedssl import nets
from fedssl.data.progress import Say
from fedssl.errors import ConfigError, RunError
from fedssl.experiment import Experiment
from fedssl.federate import Sites
from fedssl.memory import Remembered
from fedssl.store import Store
from fedssl.topology import MEAN
from fedssl.tree import Mean, State, to_device

NOTHING: Mapping[str, Remembered] = MappingProxyType({})


class Own(Mapping[str, State]):
    """Clients' own models, of those that have one; `make` gives a client's, or None.

    Who has one shows only when what it remembers has been read, perhaps from the disk. So nothing is read before it is
    asked for, and the last model is kept: to go through all of them reads each client's memory once.
    """

    def __init__(self, clients: Sequence[str], make: Callable[[str], State | None]) -> None:
        self._make = lru_cache(maxsize=1)(make)
        self._has: dict[str, bool | None] = dict.fromkeys(clients)  # None: nobody has looked yet

    def __getitem__(self, client: str) -> State:
        state = self._make(client) if client in self else None
        if state is None:
            raise KeyError(client)
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
        return any(True for _ in self)  # the first will do


class Models(Mapping[str, State]):
    """By name. A client's own is made when somebody asks for it: they may be many, and need not be there all at once.

    Those `apart` are measured beside the others and are no part of the mean over them.
    """

    def __init__(self, own: Mapping[str, State], shared: Mapping[str, State], apart: Collection[str]) -> None:
        self._own, self._shared, self.apart = own, shared, frozenset(apart)

    def __getitem__(self, name: str) -> State:
        return self._shared[name] if name in self._shared else self._own[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from self._shared

    def __contains__(self, name: object) -> bool:
        return name in self._shared or name in self._own

    def __len__(self) -> int:
        return len(self._own) + len(self._shared)

    def __bool__(self) -> bool:
        return bool(self._shared) or bool(self._own)


def models_of(
    experiment: Experiment,
    sites: Sites,
    memory: Mapping[str, Remembered] = NOTHING,
    device: torch.device | str = "cpu",
) -> Models:
    """Every model worth evaluating; `memory` is what clients remember, `device` where the sites are.

    With an algorithm that personalises: each client's own, by client, and apart from them what sites export. With
    others, and while no client has one: what sites export, `global` with one server, else by site; of peers, their
    `mean` as well, apart.
    """
    own = _own(experiment, sites, memory, device)
    exported = {site: experiment.algorithm.export(tree) for site, tree in sites.items()}
    peers = experiment.topology.consensus and len(sites) > 1
    some = bool(own)
    taken = memory if some else NOTHING  # names of clients
    if peers:
        mean = {MEAN: _mean_of(list(exported.values()))}
        exported = mean if some else exported | mean
    shared = {}
    for site, named in exported.items():
        for name, state in named.items():
            short = name if len(sites) == 1 else site if len(named) == 1 else None
            shared[f"{site}/{name}" if short is None or short in taken else short] = state
    apart = shared if some else [name for name in shared if peers and name.partition("/")[0] == MEAN]
    return Models(own, shared, list(apart))


def saved_models(experiment: Experiment, folder: Path, say: Say) -> Models:
    """Those of the newest checkpoint of a run directory."""
    snapshot = Store(folder).load(say, check_rows=False)
    if snapshot is None:
        gone = "no checkpoint any more" if (folder / "results.json").is_file() else "no checkpoint yet"
        raise ConfigError(f"{folder} has {gone}")
    return models_of(experiment, snapshot.sites, snapshot.memory)


def _own(
    experiment: Experiment, sites: Sites, memory: Mapping[str, Remembered], device: torch.device | str
) -> Mapping[str, State]:
    algorithm = experiment.algorithm

    def personal(client: str) -> State | None:
        home = sites[client] if client in sites else next(iter(sites.values()))  # its own site, or the only one
        try:
            remembered = memory[client].tree
        except (OSError, ValueError) as problem:  # deleted, damaged, or replaced by a run that goes on meanwhile
            raise RunError(f"what client {client} remembers cannot be read, nor its model made: {problem}") from problem
        return algorithm.personal(algorithm.broadcast(home, client), to_device(remembered, device))

    return Own(sorted(memory), personal) if algorithm.personalises else {}


def _mean_of(exported: Sequence[Mapping[str, State]]) -> dict[str, State]:
    """The plain mean over all sites of each model they export; counters keep the largest."""
    means = {name: Mean() for name in exported[0]}
    for named in exported:
        for name, mean in means.items():
            mean.add(named[name], 1.0)
    return {name: mean.result() for name, mean in means.items()}


def export(
    experiment: Experiment,
    folder: Path,
    models: Mapping[str, State],
    image: tuple[int, int, int],
    rounds: int,
    notes: list[str],
) -> None:
    """backbone.safetensors, or backbone-MODEL.safetensors where a run ends with several."""
    method, data = experiment.to_dict()["method"], experiment.data
    header = {
        "format": "pt",
        "fedssl": fedssl.__version__,
        "experiment": experiment.hash(),
        "method": method["name"],
        "backbone": method["backbone"],
        "stem": method["stem"],
        "rounds": str(rounds),
        "notes": "; ".join(notes),
        "image": json.dumps(image),
        "mean": json.dumps(data.mean),
        "std": json.dumps(data.std),
        "input": "pixels / 255, then (x - mean) / std where mean is given; eval mode",
    }
    for name, state in models.items():
        file = "backbone.safetensors" if len(models) == 1 else nets.backbone_file(name)
        tensors = state.pick(("backbone",)).without_prefix("backbone").tensors()
        nets.save_backbone(tensors, folder / file, header | {"model": name})
