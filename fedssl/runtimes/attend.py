"""One client's share of a round, the same in every runtime: enter with what it remembers, train, remember, answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.algorithm import Algorithm
from fedssl.client import Client
from fedssl.errors import ClientError, is_out_of_memory
from fedssl.guard import Reply
from fedssl.pixels import Pixels
from fedssl.tiers import on_device
from fedssl.train import Trainer
from fedssl.tree import Tree

NOTHING: Mapping[torch.device, Tensor] = MappingProxyType({})


class Shard(NamedTuple):
    """One client's private images, and how to get their labels should a method learn from them."""

    pixels: Tensor | Pixels | Mapping[torch.device, Pixels]  # (n, C, H, W) uint8; perhaps a pool on each device
    labels: Callable[[], Tensor] | None = None

    def on(self, device: torch.device) -> Tensor | Pixels:
        return self.pixels[device] if isinstance(self.pixels, Mapping) else self.pixels

    @property
    def images(self) -> int:
        return len(next(iter(self.pixels.values())) if isinstance(self.pixels, Mapping) else self.pixels)


class Pace(NamedTuple):
    """Where a round stands in the run."""

    rate: float
    progress: float
    rounds: int = 1  # of the whole run


class Work(NamedTuple):
    """What all clients of a run have in common."""

    algorithm: Algorithm
    seed: int
    pace: Callable[[int], Pace]
    public: Mapping[torch.device, Tensor]  # images that everybody may see, on each device
    stop: threading.Event


def attend(
    work: Work,
    client_id: str,
    round: int,
    shard: Shard,
    trainer: Trainer,
    message: Tree,
    recall: Callable[[], Tree],
    remember: Callable[[Tree], object],
    home: torch.device,
) -> Reply:
    """Train for one round on the trainer's device; the upload goes to `home`. Or say why it could not be done."""
    pace, device = work.pace(round), trainer.device
    try:
        with trainer.active():
            client = Client(
                client_id,
                shard.on(device),
                shard.labels,
                on_device(recall(), device),
                trainer,
                work.seed,
                round,
                pace.rate,
                pace.progress,
                pace.rounds,
                work.public.get(device),
                work.stop,
            )
            upload, memory = work.algorithm.client(client, on_device(message, device))
            remember(memory)
        metrics = client.metrics[0] if client.metrics else None
        sent = on_device(upload, home)
        return Reply(client_id, client.count, sent, metrics, round=round, notes=client.notes)
    except ClientError as problem:
        return Reply(client_id, 0, None, None, str(problem))
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
        return Reply(client_id, 0, None, None, "the device is out of memory; try a smaller train.batch")
