"""How an experiment becomes a federation: data read, dealt to clients, models built."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssl import nets
from fedssl.client import Client, Meter, unmetered
from fedssl.data import Dataset, HeldOut, from_python
from fedssl.data.progress import Say
from fedssl.errors import ClientError, ConfigError, DataError, RunError
from fedssl.experiment import Experiment, check_uploads
from fedssl.federate import Sites
from fedssl.method import Method, Normalisation
from fedssl.numerics import threads
from fedssl.pixels import place
from fedssl.probes import balanced, how_many
from fedssl.room import free_on_device
from fedssl.runtimes.attend import Pace, Shard
from fedssl.seeds import derive, generator
from fedssl.topology import MEAN, SERVER
from fedssl.train import Trainer

CLIENTS_PER_GPU = 5  # side by side: with more, another hardly finds a gap to fill
BYTES_PER_PIXEL = 12_000  # of a batch's views, for a training step's activations; a ResNet-50 takes as many
HOME = "home"  # who an algorithm makes its first state at


def resolve_device(name: str) -> torch.device:
    """`auto`: all CUDA devices if there are any, else the CPU. `cuda` means all of them, `cuda:1` that one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f'device "{name}" is not one torch knows; try auto, cpu, cuda or cuda:1') from None
    if device.type == "cpu":
        return torch.device("cpu")  # there is but one
    if device.type != "cuda":
        raise ConfigError(f'device "{name}" is not one fedssl trains on; try auto, cpu, cuda or cuda:1')
    if (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f'device "{name}" is not there: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices'
        )
    return device


def read_data(experiment: Experiment, root: Path, given: Any, say: Say) -> Dataset:
    """The experiment's images; `given` are images handed over in Python."""
    if given is not None:
        return experiment.data.set_aside(given if isinstance(given, Dataset) else from_python(given))
    return experiment.data.load(root, say)


def read_public(experiment: Experiment, data: Dataset, root: Path, say: Say) -> Tensor | None:
    """Images that everybody may see, (n, C, H, W) like the training images of `data`; None if nobody needs them."""
    if experiment.algorithm.needs_public:
        return experiment.public.take(data.train, root, generator(experiment.seed, "public"), say)
    if experiment.public != HeldOut():
        say("[public] is not used: the algorithm as set needs no public images")
    return None


def deal(experiment: Experiment, data: Dataset, say: Say) -> tuple[Dataset, dict[str, Tensor]]:
    """The images as clients see them, and who holds which: client → indices. Clients without any are named once.

    What is handed back is for training; models are measured with the images that were handed in. Images that are
    public or left out are taken from whom they were dealt to, so that the others are dealt as they would be otherwise.
    """
    parts = experiment.partition.split(data, experiment.clients, generator(experiment.seed, "partition"))
    nobodys = torch.cat([public_rows(experiment, data), left_out(experiment, data)])
    parts = {client: index[~torch.isin(index, nobodys)] for client, index in parts.items()}
    owners = dict(experiment.topology.owners(parts))
    own = {SERVER, HOME, MEAN} if experiment.topology.consensus else {SERVER, HOME}
    if taken := own & owners.keys():
        raise ConfigError(f'a client is called "{min(taken)}", as something of fedssl\'s own is; give it another name')
    empty = [client for client, index in owners.items() if not len(index)]
    if len(empty) == len(owners):
        raise DataError("no client has any images")
    if empty:
        say(f"without images, so never asked to train: {', '.join(empty)}")
    check_plan(experiment, [c for c in owners if c not in empty])
    return experiment.partition.shift(data, parts), owners


def check_plan(experiment: Experiment, clients: list[str]) -> None:
    """Reject clients that the topology cannot connect, or too few of them for a server to merge."""
    plan = experiment.topology.plan(clients, 0, experiment.seed)
    check_uploads(len(plan.home), len(clients), experiment.min_uploads)


def public_rows(experiment: Experiment, data: Dataset) -> Tensor:
    """Which training images are public (n,)."""
    if not experiment.algorithm.needs_public:
        return torch.empty(0, dtype=torch.int64)
    return experiment.public.rows(len(data.train), generator(experiment.seed, "public"))


def left_out(experiment: Experiment, data: Dataset) -> Tensor:
    """Which training images `data.leave_out` keeps from every client (n,), in order: as many of each class, drawn by
    the run's seed. Public ones are not among them, for clients train with those."""
    share, train = experiment.data.leave_out, data.train
    if not share:
        return torch.empty(0, dtype=torch.int64)
    if not train.labelled:
        raise ConfigError("data.leave_out draws as many images of each class, and the training images have no labels")
    rows = torch.arange(len(train))
    rows = rows[~torch.isin(rows, public_rows(experiment, data))]
    return rows[balanced(train.labels[rows], how_many(share, len(train)), generator(experiment.seed, "left out"))]


def training_devices(device: torch.device) -> list[torch.device]:
    """Those that clients are spread over; the first is where sites are merged and models measured."""
    if device == torch.device("cuda"):
        return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return [device]


def shards(data: Dataset, owners: Mapping[str, Tensor], devices: Iterable[torch.device]) -> dict[str, Shard]:
    """Each client's own images, rows of one pool on each device. Labels are not loaded, only how to get them is passed
    on."""
    pools = {each: place(data.train.held, each) for each in dict.fromkeys(devices)}
    return {
        client: Shard({each: pool.select(index) for each, pool in pools.items()}, data.train.select(index).label_loader)
        for client, index in owners.items()
    }


def normalisation(experiment: Experiment, channels: int) -> Normalisation | None:
    mean, std = experiment.data.mean, experiment.data.std
    if mean is None or std is None:
        return None
    if len(mean) != channels:
        raise ConfigError(f"data.mean has {len(mean)} numbers, the images have {channels} channels")
    return Normalisation(mean, std)


def build_backbone(experiment: Experiment, channels: int) -> nets.Backbone:
    return nets.build(experiment.method.backbone, channels, experiment.method.stem)


def build_method(experiment: Experiment, image: tuple[int, int, int], device: torch.device) -> Method:
    """The method for images of (C, H, W), its weights drawn from the run's seed or read from `method.init`."""
    channels, height, _ = image
    with torch.random.fork_rng(devices=[]):  # modules draw their weights from torch's default generator
        torch.default_generator.manual_seed(derive(experiment.seed, "weights"))
        backbone = build_backbone(experiment, channels)
        if experiment.method.init is not None:
            nets.load_backbone(backbone, experiment.method.init)
        return experiment.method.build(backbone, height, device, normalisation(experiment, channels))


def build_trainers(
    experiment: Experiment, image: tuple[int, int, int], device: torch.device, clients: int
) -> list[Trainer]:
    """One for each client that trains at the same time, on each device in turn."""
    devices, settings = training_devices(device), experiment.train
    room = {each: settings.workers or _room(experiment, image, each) for each in devices}
    turns = [each for turn in range(max(room.values())) for each in devices if turn < room[each]]
    places = turns[: max(1, min(settings.workers or len(turns), clients))]
    return [Trainer(build_method(experiment, image, each), settings) for each in places]


def _room(experiment: Experiment, image: tuple[int, int, int], device: torch.device) -> int:
    """How many clients train side by side on a device: one for each core, or as many as a GPU's memory surely holds."""
    if device.type == "cuda":
        side = experiment.method.view_size or image[1]
        needed = BYTES_PER_PIXEL * 2 * experiment.train.batch * side * side
        return max(1, min(CLIENTS_PER_GPU, free_on_device(device) // needed))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // experiment.train.threads)


def pace(experiment: Experiment) -> Callable[[int], Pace]:
    """Where each round of an experiment stands in the run."""
    rounds = experiment.rounds
    return lambda round: Pace(experiment.train.rate(round, rounds), round / rounds, rounds)


def first_sites(
    experiment: Experiment,
    trainer: Trainer,
    clients: list[str],
    public: Tensor | None = None,
    meter: Meter = unmetered,
) -> Sites:
    """Every site's first state, from one common initialisation; `public` images are on the trainer's device, and
    `meter` is told of what takes long."""
    nobody, rounds = trainer.method.state.floats.new_empty(0, dtype=torch.uint8), experiment.rounds
    home = Client(HOME, nobody, None, {}, trainer, experiment.seed, 0, rounds=rounds, public=public, meter=meter)
    try:
        with threads(experiment.train.threads):  # as many as a client has: an algorithm may train here
            first = experiment.algorithm.init(home)
    except ClientError as problem:
        raise RunError(f"before the first round, on public images: {problem}") from problem
    numbers = {client: i for i, client in enumerate(clients)}
    return {
        site: experiment.algorithm.enrol(first, {site: numbers[site]} if site in numbers else numbers)
        for site in experiment.topology.sites(clients)
    }
