"""A client: private images, memory between rounds, separate random streams; no server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedssl.core.errors import ConfigError
from fedssl.core.seeds import generator
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree
from fedssl.data.image_pool import Pixels, as_pixels
from fedssl.method import Constants, Method
from fedssl.training.step import Objective
from fedssl.training.trainer import Draw, Metrics, Trainer, TrainingTask, no_draws

Meter = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


def unmetered(title: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    """Return a meter that shows no progress."""
    return nullcontext(lambda amount: None)


@dataclass(frozen=True)
class Client:
    """One client in one round, with the trainer that is lent to it for the round."""

    id: str  # the client's name
    pixels: Tensor | Pixels  # the client's images, uint8 (n, C, H, W)
    # Returns the labels (n,); called only for a method that learns from labels.
    labels: Callable[[], Tensor] | None
    memory: Tree  # the client's memory after its last round; empty in its first
    trainer: Trainer  # the resident method with its optimizer; clients of a worker share it
    seed: int  # the seed of the run
    round: int  # the number of the round, from 0
    rate: float = 0.0  # the learning rate of the round
    progress: float = 0.0  # the share of the run that is done
    rounds: int = 1  # the number of rounds of the run
    public: Tensor | None = None  # public images, uint8 (n, C, H, W), on the trainer's device
    stop: threading.Event = field(default_factory=threading.Event)
    # One entry for each call of `train`; the first is reported.
    metrics: list[Metrics] = field(default_factory=list)
    # Values that an algorithm adds to the rounds log.
    notes: MutableMapping[str, float] = field(default_factory=dict)
    meter: Meter = unmetered  # shows the progress of long work in `Algorithm.init`

    @property
    def method(self) -> Method:
        """The trainer's resident method."""
        return self.trainer.method

    @property
    def count(self) -> int:
        """The number of images."""
        return len(self.pixels)

    def generator(self, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return this client's random stream for one purpose in this round."""
        return generator(self.seed, self.round, self.id, purpose, device=device)

    def chunks(self, index: Tensor, size: int) -> Iterator[Tensor]:
        """Yield the images at `index` (m,), at most `size` at a time, on the trainer's device.

        A chunk may be overwritten when the next one is requested.
        """
        return as_pixels(self.pixels, self.trainer.device).select(index).chunks(size)

    def train(self, objective: Objective, constants: Constants, draw: Draw = no_draws) -> Metrics:
        """Train the resident method on this client's images.

        `draw` returns random numbers for the objective.
        """
        task = self._task(f"train {len(self.metrics)}", draw)
        metrics = self.trainer.fit(task, objective, constants)
        self.metrics.append(metrics)
        return metrics

    def measure(
        self, constants: Constants, *objectives: Objective, draw: Draw = no_draws
    ) -> list[float]:
        """Return the values of objectives on one batch, without changing the method."""
        task = self._task(f"measure {len(self.metrics)}", draw)
        return self.trainer.measure(task, constants, *objectives)

    def _task(self, purpose: str, draw: Draw) -> TrainingTask:
        return TrainingTask(
            self.pixels,
            self._labels(),
            self.generator(purpose, self.trainer.device),
            rate=self.rate,
            progress=self.progress,
            stop=self.stop,
            draw=draw,
        )

    def _labels(self) -> Tensor | None:
        """Return the labels for a method that learns from them; None for all other methods."""
        if not self.method.learns_from_labels:
            return None
        if self.labels is None:
            raise ConfigError(
                f"the method learns from labels, but the training images of client {self.id} have "
                "none: choose labelled images or a self-supervised method"
            )
        labels = self.labels()
        self.method.check_labels(labels)
        return labels.to(self.trainer.device)

    def embed(self, state: State, output: Literal["h", "z", "p"] = "h") -> Tensor:
        """Return features (n, d) of the clean images under `state`, in eval mode.

        The resident method is restored afterwards.
        """
        resident = self.method.state
        before = resident.clone()
        resident.load(state)
        try:
            return self.trainer.embed(self.pixels, output)
        finally:
            resident.load(before)
