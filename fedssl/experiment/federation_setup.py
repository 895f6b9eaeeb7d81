"""One experiment, ready to train: its clients' images, its models and its trainers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedssl import nets
from fedssl.algorithm import Sites
from fedssl.core.devices.free_memory import free_host_memory
from fedssl.core.devices.precision import threads
from fedssl.core.devices.select import training_devices
from fedssl.core.errors import ClientError, ConfigError, OutOfMemory, RunError
from fedssl.core.seeds import derive
from fedssl.data import Dataset
from fedssl.data.image_pool import place
from fedssl.engine.checkpoints.client_memory import ClientMemory
from fedssl.engine.runtimes.client_round import RoundPosition, RunContext, Shard
from fedssl.engine.runtimes.local import LocalRuntime, ignore_reply, ignore_start
from fedssl.engine.uploads.records import Reply
from fedssl.engine.uploads.validate import Schema
from fedssl.experiment.backbone_trial import try_backbone
from fedssl.experiment.client_data import INITIAL_CLIENT
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.init_file import load_init
from fedssl.experiment.placements import placements
from fedssl.method import Method, Normalisation
from fedssl.training.client import Client, Meter, unmetered
from fedssl.training.trainer import Trainer


@dataclass(frozen=True)
class Federation:
    """One experiment, ready to train on this machine."""

    experiment: Experiment
    shards: Mapping[str, Shard]  # the images of each client that has any, in the clients' order
    trainers: Sequence[Trainer]  # one for each client that trains at the same time
    public: Mapping[torch.device, Tensor]  # images that everyone may see, on each device

    @classmethod
    def build(
        cls,
        experiment: Experiment,
        dataset: Dataset,
        client_indices: Mapping[str, Tensor],
        *,
        public: Tensor | None,
        device: torch.device,
        parallel: int | None = None,
    ) -> Federation:
        """Build the trainers and place the images, by client, on their devices.

        Clients without images are left out: the site of a client that never trains would be
        measured as if it had. At most `parallel` clients train at the same time.
        """
        client_indices = {client: index for client, index in client_indices.items() if len(index)}
        if parallel is None:
            plan = experiment.topology.plan(list(client_indices), 0, experiment.seed)
            parallel = len(plan.site_of)
        most_images = max(len(index) for index in client_indices.values())
        trainers = build_trainers(
            experiment, dataset.train.image_shape, device, parallel, most_images
        )
        devices = dict.fromkeys(trainer.device for trainer in trainers)
        public_on: dict[torch.device, Tensor] = {}
        if public is not None:
            public_on = {trained_on: public.to(trained_on) for trained_on in devices}
        return cls(experiment, shards(dataset, client_indices, devices), trainers, public_on)

    @property
    def clients(self) -> list[str]:
        """The clients that have images, in order."""
        return list(self.shards)

    @property
    def trainer(self) -> Trainer:
        """The first trainer: its device is where sites are merged."""
        return self.trainers[0]

    @property
    def device(self) -> torch.device:
        """The device on which sites are merged and models measured."""
        return self.trainer.device

    @property
    def schema(self) -> Schema:
        """What an upload must look like."""
        return self.experiment.algorithm.upload_schema(self.trainer.method)

    def image_counts(self) -> dict[str, int]:
        """Return the number of images of each client."""
        return {client: shard.images for client, shard in self.shards.items()}

    def first_sites(self, meter: Meter = unmetered) -> Sites:
        """Return the state of each site before the first round."""
        public = self.public.get(self.device)
        return first_sites(self.experiment, self.trainer, self.clients, public, meter)

    def context(self, stop: threading.Event) -> RunContext:
        """Return what all clients have in common; `stop` ends training within a step."""
        experiment = self.experiment
        return RunContext(
            experiment.algorithm,
            experiment.seed,
            round_positions(experiment),
            public=self.public,
            stop=stop,
        )

    def runtime(
        self,
        memory: ClientMemory,
        stop: threading.Event,
        on_client: Callable[[Reply], None] = ignore_reply,
        on_start: Callable[[str, Trainer], None] = ignore_start,
    ) -> LocalRuntime:
        """Return a runtime that trains all clients in this process."""
        return LocalRuntime(
            self.context(stop),
            self.shards,
            self.trainers,
            memory,
            on_client=on_client,
            on_start=on_start,
        )


def shards(
    data: Dataset, client_indices: Mapping[str, Tensor], devices: Iterable[torch.device]
) -> dict[str, Shard]:
    """Return each client's images as rows of one pool per device. Labels are not loaded."""
    pools = {device: place(data.train.pixel_rows, device) for device in dict.fromkeys(devices)}
    by_client = {}
    for client, index in client_indices.items():
        pixels = {device: pool.select(index) for device, pool in pools.items()}
        by_client[client] = Shard(pixels, data.train.select(index).label_loader)
    return by_client


def normalisation(experiment: Experiment, channels: int) -> Normalisation | None:
    """Return the mean and standard deviation that images are normalised by; None without any."""
    mean = experiment.data.mean
    std = experiment.data.std
    if mean is None or std is None:
        return None
    if len(mean) != channels:
        raise ConfigError(
            f"data.mean has {len(mean)} numbers, but the images have {channels} channels: "
            "give one number for each channel"
        )
    return Normalisation(mean, std)


def build_backbone(experiment: Experiment, channels: int) -> nets.Backbone:
    """Return the backbone for images of this many channels, with random weights."""
    method = experiment.method
    return nets.build(method.backbone, channels, method.stem, method.norm)


def build_method(
    experiment: Experiment, image: tuple[int, int, int], device: torch.device
) -> Method:
    """Return the method for images of (C, H, W), with weights from the seed or `method.init`."""
    channels, height, _ = image
    # Modules draw their weights from torch's default generator.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(experiment.seed, "weights"))
        backbone = build_backbone(experiment, channels)
        load_init(backbone, experiment.method)
        return experiment.method.build(
            backbone, height, device, normalisation(experiment, channels)
        )


def build_trainers(
    experiment: Experiment,
    image: tuple[int, int, int],
    device: torch.device,
    clients: int,
    most_images: int = 2,
) -> list[Trainer]:
    """Return a trainer for each client that trains at the same time, on the devices in turn.

    `most_images` is the number of images of the largest client, if known.
    """
    settings = experiment.train
    try_backbone(experiment, image)
    devices = training_devices(device)
    chosen_devices = placements(experiment, image, devices)
    count = min(settings.workers or len(chosen_devices), clients)
    chosen_devices = chosen_devices[: max(1, count)]
    if device.type == "cpu":
        batch = min(settings.batch, most_images)
        _check_host_memory(experiment, image, len(chosen_devices), batch)
    first: dict[torch.device, Method] = {}  # on each device
    trainers = []
    for chosen in chosen_devices:
        method = build_method(experiment, image, chosen)
        if experiment.method.adapters is not None:
            method.share_frozen(first.setdefault(chosen, method).backbone)
        trainers.append(Trainer(method, settings))
    return trainers


def _check_host_memory(
    experiment: Experiment, image: tuple[int, int, int], workers: int, batch: int
) -> None:
    """Raise OutOfMemory where not even weights, gradients and one batch's views fit.

    An allocation that is too large may succeed and have the process killed when it is used.
    """
    channels, height, _ = image
    with nets.uninitialized():
        method = experiment.method.make(build_backbone(experiment, channels), height)
    gradients = sum(parameter.numel() for parameter in method.parameters())
    weights = gradients + sum(buffer.numel() for buffer in method.buffers())
    views = sum(group.count * group.size**2 for group in method.views) * batch * channels
    needed = 4 * workers * (weights + gradients + views)
    free = free_host_memory()
    if needed > free:
        raise OutOfMemory(
            f"training {workers} clients at a time needs at least {needed / 1e9:,.1f} GB of "
            f"memory, but only {free / 1e9:,.1f} GB are free: try a smaller train.batch, "
            "method.view_size or model, or fewer train.workers"
        )


def round_positions(experiment: Experiment) -> Callable[[int], RoundPosition]:
    """Return a function from a round to its position in the run."""
    rounds = experiment.rounds
    return lambda round: RoundPosition(
        experiment.train.lr_at(round, rounds), round / rounds, rounds
    )


def first_sites(
    experiment: Experiment,
    trainer: Trainer,
    clients: list[str],
    public: Tensor | None = None,
    meter: Meter = unmetered,
) -> Sites:
    """Return every site's first state, from one common initialisation.

    `public` images are on the trainer's device; `meter` shows the progress of long computations.
    """
    no_images = trainer.method.state.floats.new_empty(0, dtype=torch.uint8)
    client = Client(
        id=INITIAL_CLIENT,
        pixels=no_images,
        labels=None,
        memory={},
        trainer=trainer,
        seed=experiment.seed,
        round=0,
        rounds=experiment.rounds,
        public=public,
        meter=meter,
    )
    try:
        # As many threads as a client has: an algorithm may train here.
        with threads(experiment.train.threads):
            first = experiment.algorithm.init(client)
    except ClientError as problem:
        raise RunError(
            f"training on public images before the first round failed: {problem}"
        ) from problem
    numbers = {client: i for i, client in enumerate(clients)}
    sites = {}
    for site in experiment.topology.sites(clients):
        members = numbers
        if site in numbers:  # a peer
            members = {site: numbers[site]}
        sites[site] = experiment.algorithm.init_site(first, members)
    return sites
