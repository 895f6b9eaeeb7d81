"""Local training: a resident model and its step (views → forward → objective → backward → optimizer → after-step)."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedssl import views
from fedssl.capture import CapturedSteps
from fedssl.errors import ClientError, ConfigError
from fedssl.health import effective_rank, spread
from fedssl.layout import PARAMETERS
from fedssl.method import Batch, Given, Method, Output
from fedssl.optim import SGD, Adam, Optimizer
from fedssl.settings import Settings
from fedssl.tree import State

Objective: TypeAlias = Callable[[Method, Batch, Output, Given], Tensor]


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
    mode: Literal["auto", "eager", "captured"] = "auto"  # captured: the step as one CUDA graph; auto: on CUDA
    threads: PositiveInt = 1  # CPU threads per client: one and two threads give different bits
    deterministic: bool = False  # on CUDA: equal bits from run to run, at a price
    workers: int = Field(0, ge=0)  # clients trained side by side; 0: as many as the machine has room for
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


class Task(NamedTuple):
    """One client's share of one round: its images, its random stream and where the run stands."""

    pixels: Tensor  # (n, C, H, W) uint8 on the trainer's device
    labels: Tensor | None
    generator: torch.Generator  # on the trainer's device
    rate: float
    progress: float
    stop: threading.Event


class Inputs(NamedTuple):
    """All that is new in a step. Whatever else a step reads or writes stays at its address."""

    rows: Tensor  # (B,) of the client's images
    images: Tensor  # (B, C, H, W) uint8
    uniforms: tuple[Tensor, ...]  # one (V·B, columns) per ViewGroup
    labels: Tensor | None
    draws: Mapping[str, Tensor]


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
        frozen = [n for n, p in method.named_parameters() if not p.requires_grad and n.split(".")[0] in method.online]
        if frozen:
            raise TypeError(f"{frozen[0]} does not train but lies among what does: make it a buffer")
        row = method.parameter_row(method.online)
        self.optimizer = make_optimizer(settings, method, row)
        self.grad = torch.zeros_like(row)
        self.parameters = [p for p in method.parameters() if p.requires_grad]
        slots = State(method.state.layout.pick(method.online, PARAMETERS), self.grad, self.grad.new_empty(0))
        by_name = slots.tensors()
        self._slots = [by_name[name] for name, p in method.named_parameters() if p.requires_grad]
        self.loss = torch.zeros((), device=self.device)
        self.progress = torch.zeros((), device=self.device)
        self._captured = CapturedSteps(self) if resolve_mode(settings.mode, self.device) == "captured" else None

    def fit(self, task: Task, objective: Objective, given: Given) -> Metrics:
        """Train for the settings' epochs on a client's images; the optimizer starts afresh."""
        size = min(self.settings.batch, len(task.pixels))
        if size < 2:
            raise ClientError(f"too few images: {len(task.pixels)}, at least 2 are needed to train")
        started = time.perf_counter()
        self.optimizer.reset()
        self.optimizer.rate.fill_(task.rate)
        self.progress.fill_(task.progress)
        self.loss.zero_()
        self.method.passed = 0  # whatever a client that broke off left behind
        self.method.train()
        # A client with fewer images than a batch is rare and quick: not worth a graph of its own.
        step = self._captured.step if self._captured and size == self.settings.batch else self.step
        steps = 0
        for _ in range(self.settings.epochs):
            found = self.method.before_epoch(lambda: self.embed(task.pixels))
            given = {**given, **found} if found else given
            for index in _batches(len(task.pixels), size, task.generator):
                if task.stop.is_set():
                    raise Stopped
                out = step(self._inputs(task, index), objective, given)
                steps += 1
            if not math.isfinite(loss := self.loss.item() / steps):
                raise ClientError("its loss is not finite any more")
        std, rank = spread(out.z), effective_rank(out.h)
        return Metrics(loss, steps, steps * size, time.perf_counter() - started, std, rank)

    def step(self, inputs: Inputs, objective: Objective, given: Given) -> Output:
        """Views → forward → objective → backward → optimizer → after-step."""
        batch = self._batch(inputs)
        out: Output = self.method(batch)
        loss = objective(self.method, batch, out, given)
        grads = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        with torch.no_grad():
            torch._foreach_copy_(self._slots, grads)
            self.optimizer.step(self.grad)
            self.method.count_batch()
            self.method.after_step(out)
            self.loss.add_(loss.detach())
        return out

    @torch.no_grad()
    def embed(self, pixels: Tensor, what: Literal["h", "z", "p"] = "h", batch: int = 512) -> Tensor:
        """Features (n, d) of clean images (n, C, H, W) under the resident model, in eval mode."""
        method, training = self.method, self.method.training
        method.eval()
        try:
            return torch.cat([getattr(method.encode(method.clean(x)), what) for x in pixels.split(batch)])
        finally:
            method.train(training)

    def _inputs(self, task: Task, index: Tensor) -> Inputs:
        stream, n = task.generator, len(index)
        return Inputs(
            index,
            task.pixels[index],
            tuple(views.draw(g.augment, g.count * n, stream, self.device) for g in self.method.views),
            None if task.labels is None else task.labels[index],
            self.method.draw(n, stream),
        )

    def _batch(self, inputs: Inputs) -> Batch:
        method = self.method
        made = tuple(
            views.make_views(group, inputs.images, uniforms, method.mean, method.std)
            for group, uniforms in zip(method.views, inputs.uniforms, strict=True)
        )
        return Batch(inputs.rows, inputs.images, made, inputs.labels, None, inputs.draws, self.progress)

    def moving(self) -> list[Tensor]:
        """Every tensor a step changes and the next one reads."""
        return [self.method.state.floats, self.method.state.counts, self.loss, *self.optimizer.tensors()]


def _batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Row numbers of one epoch in a new order; a last incomplete batch is left out, as the papers do."""
    order = torch.randperm(n, generator=generator, device=generator.device)
    return (order[start : start + size] for start in range(0, n - size + 1, size))


def make_optimizer(settings: TrainSettings, method: Method, row: Tensor) -> Optimizer:
    decay: float | Tensor = settings.weight_decay
    if decay and not settings.decay_norms:
        layout = method.state.layout.pick(method.online, PARAMETERS)
        decay = torch.cat(
            [
                torch.full((e.size,), settings.weight_decay if e.role == "weight" and len(e.shape) > 1 else 0.0)
                for e in layout.entries
            ]
        ).to(row.device)
    if settings.optimizer == "sgd":
        return SGD(row, decay, settings.momentum)
    return Adam(row, decay, decoupled=settings.optimizer == "adamw")


def resolve_mode(mode: str, device: torch.device) -> str:
    if mode == "captured" and device.type != "cuda":
        raise ConfigError('train.mode = "captured" needs a CUDA device')
    return ("captured" if device.type == "cuda" else "eager") if mode == "auto" else mode


def resolve_precision(precision: str, device: torch.device) -> str:
    return ("bf16" if device.type == "cuda" else "fp32") if precision == "auto" else precision
