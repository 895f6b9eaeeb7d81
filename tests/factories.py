"""Build the small experiments, images, models and federations that tests share.

Equal arguments give equal values: every function has fixed seeds. Images are uint8 (n, channels,
size, size).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from fedssl.algorithm import Algorithm, Sites
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree
from fedssl.data import Dataset, from_python
from fedssl.engine.checkpoints.client_memory import ClientMemory
from fedssl.engine.federate import Round, federate
from fedssl.engine.runtimes.client_round import RoundPosition, RunContext, Shard
from fedssl.engine.runtimes.local import LocalRuntime
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.overrides import merge_changes
from fedssl.method import METHODS, Method
from fedssl.nets import CNN, ViTMini
from fedssl.runs.rounds_log import RoundsLog
from fedssl.topologies.topology import Star, Topology
from fedssl.training.client import Client
from fedssl.training.trainer import Trainer, TrainSettings

# -- images --


def random_pixels(n: int, seed: int = 0, *, channels: int = 3, size: int = 8) -> Tensor:
    """Return uniform noise."""
    stream = torch.Generator().manual_seed(seed)
    return torch.randint(256, (n, channels, size, size), dtype=torch.uint8, generator=stream)


def numbered_pixels(n: int, seed: int = 0, *, size: int = 8) -> Tensor:
    """Return noise whose first two values encode the number of the image."""
    pixels = random_pixels(n, seed, size=size)
    pixels[:, 0, 0, 0] = torch.arange(n) % 256
    pixels[:, 0, 0, 1] = torch.arange(n) // 256
    return pixels


def bright_pixels(
    n: int,
    seed: int = 0,
    *,
    classes: int = 3,
    noise: int = 80,
    step: int = 80,
    channels: int = 3,
    size: int = 10,
) -> tuple[Tensor, Tensor]:
    """Return noise below `noise`, brighter by `step` from class to class, and the labels."""
    labels = torch.arange(n) % classes
    stream = torch.Generator().manual_seed(seed)
    dark = torch.randint(noise, (n, channels, size, size), generator=stream)
    return (dark + step * labels[:, None, None, None]).to(torch.uint8), labels


def bright_dataset(train: int = 48, test: int = 24, **options: Any) -> Dataset:
    """Return labelled training and test images whose classes differ in brightness."""
    return from_python(bright_pixels(train, 0, **options), bright_pixels(test, 1, **options))


# -- experiments --

SMALL_EXPERIMENT: dict[str, Any] = {
    "rounds": 2,
    "clients": 3,
    "data": {"name": "given"},
    "method": {"name": "byol", "backbone": "cnn", "hidden": 8, "dim": 4},
    "train": {"batch": 8, "checkpoint_every": 0},
    "probe": {"every": 0, "epochs": 5, "k": 5, "linear": False, "baselines": []},
}


# Nothing but the settings without a default.
REQUIRED_SETTINGS: dict[str, Any] = {
    "clients": 5,
    "data": {"name": "fashion-mini"},
    "method": {"name": "byol", "backbone": "cnn"},
}


def dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as dotted keys: `probe__k=3` is short for {"probe.k": 3}."""
    return {key.replace("__", "."): value for key, value in settings.items()}


def default_experiment(**settings: Any) -> Experiment:
    """Return an experiment in which all other settings have their defaults."""
    return Experiment.from_dict(merge_changes(REQUIRED_SETTINGS, dotted(settings)))


def make_experiment(changes: Mapping[str, Any] | None = None, **settings: Any) -> Experiment:
    """Return a small experiment on given images, changed by `changes` and then by `settings`."""
    changed = merge_changes(SMALL_EXPERIMENT, changes or {})
    return Experiment.from_dict(merge_changes(changed, dotted(settings)))


# -- methods, trainers and clients --

SMALL_WIDTHS = {
    "hidden": 6,
    "dim": 5,
    "queue": 7,
    "prototypes": 5,
    "clusters": 5,
    "bottleneck": 4,
    "classes": 5,
    "width": 3,
}


class TinyCNN(CNN):
    """A backbone of 24 features, 6 for each quarter of the image, and three hundred weights."""

    widths = (4, 6)


class TinyViT(ViTMini):
    """Two blocks of width 8; an image of 8 pixels a side is four patches."""

    width, depth, heads = 8, 2, 2


def known_settings(method: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for settings that the method has."""
    fields = METHODS[method].Settings.model_fields
    return {key: value for key, value in values.items() if key in fields}


def needs_patches(method: str) -> bool:
    """True if the method needs a vision transformer."""
    return METHODS[method].Settings.model_fields["backbone"].default.startswith("vit")


def make_method(name: str = "byol", **settings: Any) -> Method:
    """Return a resident method with small widths for images of 8 pixels a side."""
    chosen = {**known_settings(name, SMALL_WIDTHS), **settings}
    backbone = TinyViT if needs_patches(name) else TinyCNN
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return METHODS[name].Settings(**chosen).build(backbone(), 8)


def make_trainer(
    name: str = "byol", train: Mapping[str, Any] | None = None, **settings: Any
) -> Trainer:
    """Return a trainer: make_trainer("byol", {"batch": 4}, momentum=0.5)."""
    train_settings = TrainSettings(**{"batch": 8, "lr": 0.05, **(train or {})})
    return Trainer(make_method(name, **settings), train_settings)


def make_client(trainer: Trainer, images: Tensor, **changes: Any) -> Client:
    """Return client "a" in round 0, without memory or labels."""
    fields = {"id": "a", "labels": None, "memory": {}, "seed": 0, "round": 0, **changes}
    return Client(pixels=images, trainer=trainer, **fields)


# -- federations --


def first_site(algorithm: Algorithm, trainer: Trainer, **changes: Any) -> Tree:
    """Return what a site has before the first round."""
    return algorithm.init(make_client(trainer, random_pixels(0), id="home", **changes))


def make_runtime(
    algorithm: Algorithm,
    shards: Mapping[str, Tensor | Shard],
    *trainers: Trainer,
    rate: float = 0.1,
    seed: int = 0,
    memory: ClientMemory | None = None,
) -> LocalRuntime:
    """Return a runtime with one worker per trainer and a constant learning rate."""
    owned = {
        client: shard if isinstance(shard, Shard) else Shard(shard)
        for client, shard in shards.items()
    }
    context = RunContext(algorithm, seed, lambda round: RoundPosition(rate, 0.0))
    return LocalRuntime(context, owned, trainers, ClientMemory() if memory is None else memory)


def first_sites(
    algorithm: Algorithm, topology: Topology, clients: list[str], trainer: Trainer, **changes: Any
) -> Sites:
    """Return all sites before the first round; all have the same tree."""
    first = first_site(algorithm, trainer, **changes)
    enrolled = algorithm.init_site(first, {client: i for i, client in enumerate(clients)})
    return dict.fromkeys(topology.sites(clients), enrolled)


def train_rounds(
    algorithm: Algorithm,
    shards: Mapping[str, Tensor | Shard],
    *trainers: Trainer,
    rounds: int = 2,
    topology: Topology | None = None,
    seed: int = 0,
    **options: Any,
) -> list[Round]:
    """Return the rounds of a federation; options are those of `make_runtime`."""
    topology = topology or Star()
    runtime = make_runtime(algorithm, shards, *trainers, seed=seed, **options)
    sites = first_sites(algorithm, topology, runtime.clients, trainers[0], seed=seed)
    schema = algorithm.upload_schema(trainers[0].method)
    try:
        return list(
            federate(algorithm, topology, runtime, sites, schema=schema, rounds=rounds, seed=seed)
        )
    finally:
        runtime.close()


@contextmanager
def interrupted_in_round(number: int) -> Iterator[None]:
    """Raise KeyboardInterrupt, as Ctrl-C does, when this round is logged and not yet saved."""
    append = RoundsLog.append

    def append_and_stop(log: RoundsLog, line: dict[str, Any]) -> None:
        append(log, line)
        if line["round"] == number:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoundsLog, "append", append_and_stop)
        yield


# -- states --

ONE_WEIGHT = Layout.of([Entry("backbone.w", (1,), "weight")])


def one_weight(value: float) -> State:
    """Return a model of a single weight."""
    return State(ONE_WEIGHT, torch.tensor([float(value)]), torch.zeros(0, dtype=torch.int64))
