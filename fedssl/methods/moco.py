"""MoCo, versions 1 and 2: identify an image's other view, encoded by a momentum copy, among a queue
of earlier keys.

He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", CVPR 2020 (V1).
Chen et al., "Improved Baselines with Momentum Contrastive Learning", 2020 (V2).
Departures: symmetric (each view is query once and key once); queue, momentum, widths and the
BatchNorm in V2's head as FedEMA trains it; V2's views without blur; no shuffled BatchNorm, since
statistics are computed per view and a client trains on one device.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedssl.method import METHODS, Batch, Constants, Method, MethodSettings, Output
from fedssl.nets import linear, mlp
from fedssl.views import Augment

MAX_ROUNDS_TO_FILL = 5  # a queue that takes more rounds to fill is too long


def info_nce(queries: Tensor, keys: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Return a 0-d loss of queries and keys (V, B, k) and negatives (K, k), all of unit length.

    V1, Eq. 1: "the log loss of a (K+1)-way softmax-based classifier that tries to classify q as
    k₊", where queries[v, b] belongs to keys[v, b]. Mean over the batch, sum over the views.
    """
    positive = (queries * keys).sum(-1, keepdim=True)  # (V, B, 1)
    logits = torch.cat([positive, queries @ negatives.T], -1) / temperature
    return (logits.logsumexp(-1) - logits[..., 0]).mean(1).sum()


class Queue(nn.Module):
    """The newest `size` keys, unit rows of `keys` (size, dim); `pointer` is the next row to
    overwrite."""

    keys: Tensor
    pointer: Tensor
    places: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self.register_buffer("places", torch.arange(size), persistent=False)

    @torch.no_grad()
    def fill(self, generator: torch.Generator) -> None:
        """Fill the queue with random unit vectors: negatives for a client's first steps."""
        noise = torch.randn(self.keys.shape, generator=generator, device=generator.device)
        self.keys.copy_(F.normalize(noise, dim=-1))
        self.pointer.zero_()

    @torch.no_grad()
    def push(self, keys: Tensor) -> None:
        """Overwrite the oldest keys with `keys` (n, dim), from the pointer on and past the end.

        The pointer is not read on the host, so that no step waits for the device.
        """
        size = len(self.places)
        # Of a batch larger than the queue, the newest: no row may be written twice.
        keys = keys[-size:]
        rows = (self.places[: len(keys)] + self.pointer) % size
        self.keys.index_copy_(0, rows, keys)
        self.pointer.add_(len(keys)).remainder_(size)


class MoCoSettings(MethodSettings):
    """Settings of both versions."""

    added_later: ClassVar = ("queue_start",)

    dim: int = Field(128, gt=0)
    queue: int = Field(4096, gt=0)  # keys in the queue, the paper's K
    momentum: float = Field(0.99, ge=0, le=1)
    temperature: float = Field(0.07, gt=0)
    key: Literal["local", "reset"] = "local"  # between rounds: kept, or reset to the online one
    # the queue at the start of a client's later rounds: as it was, or random as in the first one
    queue_start: Literal["kept", "random"] = "kept"


class MoCo(Method):
    """The base of both versions, which differ in head, temperature and views."""

    settings: MoCoSettings
    private = ("queue",)
    after_step_moves_weights = False  # the queue is a buffer

    def __init__(self, settings: MoCoSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.projector = self._head()
        self.target = self.mirror()
        self.queue = Queue(settings.queue, settings.dim)

    @abstractmethod
    def _head(self) -> nn.Module: ...

    def client_warning(self, images: int) -> str | None:
        """Return a warning if the queue takes many rounds to fill: it holds random numbers at
        first, and later keys that are out of date."""
        keys = self.views[0].count * images
        size = self.settings.queue
        if size <= MAX_ROUNDS_TO_FILL * keys:
            return None
        rounds = -(-size // keys)
        return (
            f"makes {keys:,} keys a round and needs {rounds:,} rounds to fill method.queue = "
            f"{size}. Until then the rest of the queue is random numbers, and later most keys are "
            f"out of date. Try method.queue = {keys}"
        )

    @property
    def persistent_parts(self) -> tuple[str, ...]:
        """The queue and the momentum copy, unless they are reset."""
        parts: list[str] = []
        if self.settings.key == "local":
            parts.append("target")
        if self.settings.queue_start == "kept":
            parts.append("queue")
        return tuple(parts)

    @property
    def target_momentum(self) -> float:
        """The momentum of the key encoder."""
        return self.settings.momentum

    def forward(self, batch: Batch) -> Output:
        """Encode both views; the momentum copy's unit projections are the keys."""
        out = self.encode_views(batch.views[0])
        keys = F.normalize(self.encode_views_target(batch.views[0]), dim=-1)
        return out._replace(keys=keys)

    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return InfoNCE of each view with the key of the other one."""
        assert out.keys is not None
        queries = F.normalize(out.z, dim=-1)
        return info_nce(
            queries,
            out.keys.flip(0),
            negatives=self.queue.keys,
            temperature=self.settings.temperature,
        )

    def chance_loss(self, batch: int) -> float:
        """Return V·log(1 + K) for V views: the key and the queue are equally similar."""
        return self.views[0].count * math.log(1 + self.settings.queue)

    def after_step(self, out: Output) -> None:
        """Append the keys of this batch to the queue."""
        assert out.keys is not None
        self.queue.push(out.keys.flatten(0, 1))

    @torch.no_grad()
    def init_local_parts(self, generator: torch.Generator) -> None:
        """Start the momentum copy from the online network, and the queue at random."""
        super().init_local_parts(generator)
        self.queue.fill(generator)


class MoCoV1Settings(MoCoSettings):
    """Settings of version 1."""

    augment: Augment = Augment(jitter=(0.4, 0.4, 0.4, 0.1))


@METHODS.register("mocov1")
class MoCoV1(MoCo):
    """A linear head, weaker colour jitter."""

    Settings = MoCoV1Settings
    settings: MoCoV1Settings

    def _head(self) -> nn.Module:
        return linear(self.features, self.settings.dim)


class MoCoV2Settings(MoCoSettings):
    """Settings of version 2."""

    temperature: float = Field(0.2, gt=0)
    hidden: int | None = Field(None, gt=0)  # None: as wide as the backbone's features


@METHODS.register("mocov2")
class MoCoV2(MoCo):
    """An MLP head, SimCLR's views, a higher temperature."""

    Settings = MoCoV2Settings
    settings: MoCoV2Settings

    def _head(self) -> nn.Module:
        return mlp(self.features, self.settings.hidden or self.features, self.settings.dim)
