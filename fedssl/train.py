"""Local training: a resident model and its step (views → forward → objective → backward → optimizer → after-step)."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedssl import kernels, views
from fedssl.capture import CapturedSteps
from fedssl.errors import ClientError, ConfigError
from fedssl.health import alignment, effective_rank, spread, uniformity
from fedssl.layout import PARAMETERS
from fedssl.method import Given, Method
from fedssl.optim import SGD, Adam, FusedSGD, Optimizer
from fedssl.pixels import Pixels, as_pixels
from fedssl.rows import finite
from fedssl.settings import Settings
from fedssl.step import Inputs, Objective, Step
from fedssl.turns import TURNS


class TrainSettings(Settings):
    """How a client trains in one round. Defaults are FedEMA's, with one local epoch."""

    epochs: PositiveInt = 1
    batch: int = Field(128, ge=2)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(0.032, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(5e-4, ge=0)
    decay_norms: bool = True  # off: biases and normalisation layers are not decayed
    schedule: Literal["cosine", "constant", "step"] = "cosine"  # over rounds, constant inside a round
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 on CUDA, fp32 on a CPU
    mode: Literal["auto", "eager", "compiled", "captured"] = "auto"  # auto: captured on CUDA, eager on a CPU
    threads: int = Field(1, gt=0, le=256)  # CPU threads per client: one and two threads give different bits
    deterministic: bool = False  # on CUDA: equal bits from run to run
    workers: int = Field(0, ge=0, le=1024)  # clients trained side by side; 0: as many as the machine has room for
    memory: Literal["auto", "device", "host", "disk"] = "auto"  # of what clients keep; auto: the first with room
    checkpoint_every: float = Field(60.0, ge=0)  # seconds between checkpoints; 0: every round

    def rate(self, round: int, rounds: int) -> float:
        """The learning rate of a round (counted from 0) out of `rounds`."""
        if self.schedule == "cosine":
            return 0.5 * self.lr * (1 + math.cos(math.pi * round / rounds))
        if self.schedule == "step":
            return float(self.lr * 0.3 ** sum(round >= share * rounds for share in (0.3, 0.6, 0.9)))
        return self.lr


class Metrics(NamedTuple):
    """What one client's local training tells about itself, and nothing about its images."""

    loss: float
    steps: int
    images: int
    seconds: float
    embedding_std: float  # √k · mean std of unit-length projections: near 1 when spread out, 0 when collapsed
    effective_rank: float  # exp of the entropy of the features' singular values
    alignment: float | None = None  # mean squared distance between an image's views; None for a single view
    uniformity: float | None = None  # how evenly features cover the sphere: the lower, the more so


Draw: TypeAlias = Callable[[int, torch.Generator], Mapping[str, Tensor]]


def no_draws(n: int, generator: torch.Generator) -> Mapping[str, Tensor]:
    return {}


class Task(NamedTuple):
    """One client's share of one round: its images, its random stream and where the run stands."""

    pixels: Tensor | Pixels  # (n, C, H, W) uint8
    labels: Tensor | None
    generator: torch.Generator  # on the trainer's device
    rate: float
    progress: float
    stop: threading.Event
    draw: Draw = no_draws  # random numbers of the objective's own, beside the method's


class Stopped(Exception):  # noqa: N818 - a request, not an error
    """Somebody asked the run to end; nothing of this client's round is kept."""


class Trainer:
    """One resident method with its optimizer, lent to one client after another.

    Whatever a client leaves behind is overwritten or reset before the next one trains, so that results do not
    depend on who trained here before.
    """

    def __init__(self, method: Method, settings: TrainSettings) -> None:
        self.method, self.settings = method, settings
        self.device = method.state.floats.device
        method.precision = resolve_precision(settings.precision, self.device)
        mode = resolve_mode(settings.mode, self.device)
        frozen = [n for n, p in method.named_parameters() if not p.requires_grad and n.split(".")[0] in method.trained]
        if frozen:
            raise TypeError(f"{frozen[0]} does not train but lies among what does: make it a buffer")
        compiled = mode != "eager" and kernels.missing(self.device) is None
        row, cuda = method.parameter_row(method.trained), self.device.type == "cuda"
        self.step = Step(method, make_optimizer(settings, method, row, fused=compiled and cuda), compiled)
        # Small clients have batches of any size: to compile for each would take longer than to train.
        self._plain = Step(method, self.step.optimizer, beside=self.step) if compiled else self.step
        self._captured = CapturedSteps(self.step) if mode == "captured" else None
        self.stream = torch.cuda.Stream(self.device) if cuda else None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """This trainer's own stream, on CUDA: trainers in different threads do not wait for each other. What was asked
        of the device before happens before, and what is asked of it afterwards happens after."""
        if self.stream is None:
            yield
            return
        outer = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(outer)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            outer.wait_stream(self.stream)

    def fit(self, task: Task, objective: Objective, given: Given) -> Metrics:
        """Train for the settings' epochs on a client's images; the optimizer starts afresh."""
        with self.active():
            return self._fit(task, objective, given)

    def _fit(self, task: Task, objective: Objective, given: Given) -> Metrics:
        pixels = as_pixels(task.pixels, self.device)
        size = min(self.settings.batch, len(pixels))
        if size < 2:
            raise ClientError(f"too few images: {len(pixels)}, at least 2 are needed to train")
        started = time.perf_counter()
        self.step.begin(task.rate, task.progress)
        self.method.train()
        step = self._captured or self.step if size == self.settings.batch else self._plain
        steps = 0
        for _ in range(self.settings.epochs):
            found = self.method.before_epoch(lambda: self.embed(pixels))
            given = {**given, **found} if found else given
            self.step.refresh()
            order = torch.randperm(len(pixels), generator=task.generator, device=task.generator.device)
            for index, images in pixels.batches(order, size):
                if task.stop.is_set():
                    raise Stopped
                out = step(self._inputs(task, index, images), objective, given)
                steps += 1
            if not math.isfinite(loss := self.step.loss.item() / steps):
                raise ClientError("its loss is not finite any more")
        if not finite(self.method.state.floats):  # the last step's loss is that of the weights before it
            raise ClientError("its weights are not finite any more")
        signs = spread(out.z), effective_rank(out.h), alignment(out.h), uniformity(out.h)
        return Metrics(loss, steps, steps * size, time.perf_counter() - started, *signs)

    @torch.no_grad()
    def measure(self, task: Task, given: Given, *objectives: Objective) -> list[float]:
        """What objectives come to for one batch, seen as a step would see it; the method is left as found."""
        method, training = self.method, self.method.training
        with self.active(), TURNS.beside():
            pixels, found = as_pixels(task.pixels, self.device), method.state.clone()
            order = torch.randperm(len(pixels), generator=task.generator, device=task.generator.device)
            index, images = next(iter(pixels.batches(order, min(self.settings.batch, len(pixels)))))
            batch = self._plain.batch(self._inputs(task, index, images))
            self.step.refresh()
            try:
                out = method.train()(batch)
                return [objective(method, batch, out, given).item() for objective in objectives]
            finally:
                method.train(training)
                method.state.load(found)  # running statistics have moved
                method.passed = 0

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[Method]:
        """The resident method in eval mode, without gradients; left in the mode it was in. Wherever layers are run
        outside a step, it is in here: not while another thread records."""
        method, training = self.method, self.method.training
        method.eval()
        try:
            with TURNS.beside(), torch.no_grad():
                yield method
        finally:
            method.train(training)

    def embed(self, pixels: Tensor | Pixels, what: Literal["h", "z", "p"] = "h", batch: int = 512) -> Tensor:
        """Features (n, d) of clean images (n, C, H, W) under the resident model, in eval mode."""
        with self.at_rest() as method:
            chunks = as_pixels(pixels, self.device).chunks(batch)
            return torch.cat([getattr(method.encode(method.clean(x)), what) for x in chunks])

    def _inputs(self, task: Task, index: Tensor, images: Tensor) -> Inputs:
        stream, n = task.generator, len(index)
        return Inputs(
            index,
            images,
            tuple(views.draw(g.count * n, stream, self.device) for g in self.method.views),
            None if task.labels is None else task.labels[index],
            {**self.method.draw(n, stream), **task.draw(n, stream)},
        )


def make_optimizer(settings: TrainSettings, method: Method, row: Tensor, fused: bool = False) -> Optimizer:
    decay: float | Tensor = settings.weight_decay
    if decay and not settings.decay_norms:
        layout = method.state.layout.pick(method.trained, PARAMETERS)
        decay = torch.cat(
            [
                torch.full((e.size,), settings.weight_decay if e.role == "weight" and len(e.shape) > 1 else 0.0)
                for e in layout.entries
            ]
        ).to(row.device)
    if settings.optimizer == "sgd":
        kind = FusedSGD if fused and not isinstance(decay, Tensor) else SGD
        return kind(row, decay, settings.momentum)
    return Adam(row, decay, decoupled=settings.optimizer == "adamw")


def resolve_mode(mode: str, device: torch.device) -> str:
    """eager: plain torch. compiled: fewer passes over memory. captured: that as one CUDA graph, or, where nothing can
    be compiled, eager as one."""
    if mode == "captured" and device.type != "cuda":
        raise ConfigError('train.mode = "captured" needs a CUDA device')
    if mode == "compiled" and (problem := kernels.missing(device)):
        raise ConfigError(f'train.mode = "compiled" cannot be: {problem}')
    return ("captured" if device.type == "cuda" else "eager") if mode == "auto" else mode


def resolve_precision(precision: str, device: torch.device) -> str:
    return ("bf16" if device.type == "cuda" else "fp32") if precision == "auto" else precision
