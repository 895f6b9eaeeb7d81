"""One client's part in a round, the same in every runtime: load its memory, train, store, reply."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.algorithm import Algorithm
from fedssl.core.errors import ClientError, is_out_of_memory
from fedssl.core.state.tree import Tree
from fedssl.data.image_pool import Pixels
from fedssl.engine.checkpoints.placement import on_device
from fedssl.engine.uploads.records import Reply
from fedssl.training.client import Client
from fedssl.training.trainer import Trainer


class Shard(NamedTuple):
    """One client's private images, and a function that loads their labels."""

    # (n, C, H, W) uint8, or rows of a pool on each device
    pixels: Tensor | Pixels | Mapping[torch.device, Pixels]
    labels: Callable[[], Tensor] | None = None  # called only by methods that learn from labels

    def on(self, device: torch.device) -> Tensor | Pixels:
        """Return the images for training on a device."""
        if isinstance(self.pixels, Mapping):
            return self.pixels[device]
        return self.pixels

    @property
    def images(self) -> int:
        """The number of images."""
        if isinstance(self.pixels, Mapping):
            return len(next(iter(self.pixels.values())))
        return len(self.pixels)


class RoundPosition(NamedTuple):
    """The position of a round in its run, and its learning rate."""

    rate: float  # the learning rate
    progress: float  # from 0 to 1
    rounds: int = 1  # of the whole run


@dataclass(frozen=True)
class RunContext:
    """What all clients of a run have in common."""

    algorithm: Algorithm
    seed: int
    position: Callable[[int], RoundPosition]  # of a round
    # Images that everyone may see, on each device.
    public: Mapping[torch.device, Tensor] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)  # ends training within a step


@dataclass(frozen=True)
class ClientRound:
    """One client's part in one round."""

    client: str
    round: int
    shard: Shard
    message: Tree
    load_memory: Callable[[], Tree]
    store_memory: Callable[[Tree], object]


def run_client(
    context: RunContext, client_round: ClientRound, trainer: Trainer, upload_device: torch.device
) -> Reply:
    """Train one client on the trainer's device; return its reply, the upload on `upload_device`."""
    try:
        with trainer.active():
            client = _client(context, client_round, trainer)
            message = on_device(client_round.message, trainer.device)
            upload, memory = context.algorithm.client_update(client, message)
            client_round.store_memory(memory)
        return Reply(
            client_round.client,
            client.count,
            on_device(upload, upload_device),
            metrics=client.metrics[0] if client.metrics else None,
            round=client_round.round,
            notes=client.notes,
        )
    except ClientError as problem:
        return failed_reply(client_round.client, str(problem))
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
        return failed_reply(
            client_round.client, "the device is out of memory; try a smaller train.batch"
        )


def failed_reply(client: str, error: str) -> Reply:
    """Return the reply of a client that has no upload."""
    return Reply(client, images=0, upload=None, metrics=None, error=error)


def _client(context: RunContext, client_round: ClientRound, trainer: Trainer) -> Client:
    position = context.position(client_round.round)
    device = trainer.device
    return Client(
        id=client_round.client,
        pixels=client_round.shard.on(device),
        labels=client_round.shard.labels,
        memory=on_device(client_round.load_memory(), device),
        trainer=trainer,
        seed=context.seed,
        round=client_round.round,
        rate=position.rate,
        progress=position.progress,
        rounds=position.rounds,
        public=context.public.get(device),
        stop=context.stop,
    )
