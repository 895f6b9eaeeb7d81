"""A client: private images, memory between rounds, random streams of its own. It knows nothing of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedssl.errors import ConfigError
from fedssl.method import Given, Method
from fedssl.pixels import Pixels, as_pixels
from fedssl.seeds import generator
from fedssl.step import Objective
from fedssl.train import Draw, Metrics, Task, Trainer, no_draws
from fedssl.tree import State, Tree

Meter = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


def unmetered(what: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    """Work that nobody follows: what is told of it goes nowhere."""
    return nullcontext(lambda amount: None)


@dataclass(frozen=True)
class Client:
    """One client in one round, bound to a trainer that is lent to it for the time being."""

    id: str
    pixels: Tensor | Pixels  # (n, C, H, W) uint8
    labels: Callable[[], Tensor] | None  # called only for a method that declares it learns from them
    memory: Tree
    trainer: Trainer
    seed: int
    round: int
    rate: float = 0.0
    progress: float = 0.0
    rounds: int = 1  # of the whole run
    public: Tensor | None = None  # (n, C, H, W) uint8, on the trainer's device: images that everybody may see
    stop: threading.Event = field(default_factory=threading.Event)
    metrics: list[Metrics] = field(default_factory=list)  # one for each call of `train`; the first is told of
    notes: MutableMapping[str, float] = field(default_factory=dict)  # what an algorithm writes into the rounds log
    meter: Meter = unmetered  # told what takes long and how much of it is done; in `Algorithm.init`

    @property
    def method(self) -> Method:
        return self.trainer.method

    @property
    def count(self) -> int:
        return len(self.pixels)

    def generator(self, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
        """This client's own random stream for one purpose in this round."""
        return generator(self.seed, self.round, self.id, purpose, device=device)

    def chunks(self, index: Tensor, size: int) -> Iterator[Tensor]:
        """The images at `index` (m,), as they are, at most `size` at a time, on the trainer's device. They may be
        overwritten as soon as the next are asked for."""
        return as_pixels(self.pixels, self.trainer.device).select(index).chunks(size)

    def train(self, objective: Objective, given: Given, draw: Draw = no_draws) -> Metrics:
        """Train the resident method on this client's images; `draw` makes an objective's own random numbers."""
        self.metrics.append(self.trainer.fit(self._task(f"train {len(self.metrics)}", draw), objective, given))
        return self.metrics[-1]

    def measure(self, given: Given, *objectives: Objective, draw: Draw = no_draws) -> list[float]:
        """What each of some objectives comes to, for one batch; nothing is trained, and the method is left as found."""
        return self.trainer.measure(self._task(f"measure {len(self.metrics)}", draw), given, *objectives)

    def _task(self, purpose: str, draw: Draw) -> Task:
        device = self.trainer.device
        labels = self._labels() if self.method.learns_from_labels else None
        return Task(self.pixels, labels, self.generator(purpose, device), self.rate, self.progress, self.stop, draw)

    def _labels(self) -> Tensor:
        if self.labels is None:
            raise ConfigError(f"the method learns from labels; the training images of {self.id} have none")
        labels = self.labels()
        self.method.check_labels(labels)
        return labels.to(self.trainer.device)

    def embed(self, state: State, what: Literal["h", "z", "p"] = "h") -> Tensor:
        """Features (n, d) of the clean images under `state`, in eval mode; the method is left as found."""
        resident = self.method.state
        found = resident.clone()
        resident.load(state)
        try:
            return self.trainer.embed(self.pixels, what)
        finally:
            resident.load(found)
