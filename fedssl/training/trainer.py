"""Local training: a resident method, its optimizer and its step, lent to one client at a time."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedssl import views
from fedssl.core import kernels
from fedssl.core.errors import ClientError, ConfigError
from fedssl.core.state.arithmetic import finite
from fedssl.data.image_pool import Pixels, as_pixels
from fedssl.method import Constants, Method
from fedssl.training.capture_lock import CAPTURE_LOCK
from fedssl.training.cuda_graph import CapturedSteps
from fedssl.training.optimizer_choice import make_optimizer
from fedssl.training.representation_metrics import alignment, effective_rank, spread, uniformity
from fedssl.training.settings import TrainSettings as TrainSettings
from fedssl.training.step import Inputs, Objective, Step
from fedssl.training.step_count import StepCount

MIN_IMAGES = 2  # that a client needs to train


class Metrics(NamedTuple):
    """Metrics of one client's local training; they contain nothing about single images."""

    loss: float
    steps: int
    images: int
    seconds: float
    # √k · mean std of unit-length projections: near 1 when spread out, 0 when collapsed
    embedding_std: float
    effective_rank: float  # exp of the entropy of the features' singular values
    # mean squared distance between an image's views; None for a single view
    alignment: float | None = None
    uniformity: float | None = None  # lower: features cover the sphere more evenly


Draw: TypeAlias = Callable[[int, torch.Generator], Mapping[str, Tensor]]


def no_draws(n: int, generator: torch.Generator) -> Mapping[str, Tensor]:
    """Return no random numbers."""
    return {}


class TrainingTask(NamedTuple):
    """One client's share of one round: its images, its random stream and the run's progress."""

    pixels: Tensor | Pixels  # (n, C, H, W) uint8
    labels: Tensor | None
    generator: torch.Generator  # on the trainer's device
    lr: float
    progress: float
    stop: threading.Event
    draw: Draw = no_draws  # random numbers of the objective, in addition to the method's


class Stopped(Exception):  # noqa: N818 - a request, not an error
    """The run was asked to end; this client's round is discarded."""


class Trainer:
    """One resident method with its optimizer, lent to one client after another.

    All state that a client leaves is overwritten or reset before the next one trains, so that
    results do not depend on earlier clients.
    """

    def __init__(self, method: Method, settings: TrainSettings) -> None:
        self.method = method
        self.settings = settings
        self.step_count = StepCount()
        self.device = method.state.floats.device
        method.precision = resolve_precision(settings.precision, self.device)
        mode = resolve_mode(settings.mode, self.device)
        _check_trainable(method)
        compiled = mode != "eager" and kernels.unavailable_reason(self.device) is None
        cuda = self.device.type == "cuda"
        row = method.parameter_row(method.trained)
        optimizer = make_optimizer(settings, method, row, fused=compiled and cuda)
        self.step = Step(method, optimizer, compiled)
        self._plain_step = self.step
        if compiled:
            # Small clients have batches of any size: compiling for each would take too long.
            self._plain_step = Step(method, optimizer, sibling=self.step)
        self._captured_step: CapturedSteps | None = None
        if mode == "captured":
            self._captured_step = CapturedSteps(self.step)
        self.stream: torch.cuda.Stream | None = None
        if cuda:
            self.stream = torch.cuda.Stream(self.device)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Use this trainer's own stream on CUDA: trainers in other threads then do not wait for it.

        Work queued before this block runs before it, and work queued afterwards runs after it.
        """
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

    def fit(self, task: TrainingTask, objective: Objective, constants: Constants) -> Metrics:
        """Train for the settings' epochs on a client's images, with a reset optimizer."""
        with self.active():
            return self._fit(task, objective, constants)

    def _fit(self, task: TrainingTask, objective: Objective, constants: Constants) -> Metrics:
        pixels = as_pixels(task.pixels, self.device)
        size = min(self.settings.batch, len(pixels))
        if size < MIN_IMAGES:
            raise ClientError(
                f"too few images: training needs at least {MIN_IMAGES}, but it has {len(pixels)}"
            )
        started = time.perf_counter()
        self.step.begin(task.lr, task.progress)
        self.method.train()
        step = self._step_for(size)
        steps = 0
        self.step_count.begin(self.settings.epochs * (len(pixels) // size), size)
        for _ in range(self.settings.epochs):
            epoch_constants = self.method.before_epoch(lambda: self.embed(pixels))
            if epoch_constants:
                constants = {**constants, **epoch_constants}
            self.step.refresh()
            for index, images in pixels.batches(self._order(pixels, task), size):
                if task.stop.is_set():
                    raise Stopped
                out = step(self._inputs(task, index, images), objective, constants)
                steps += 1
                self.step_count.done = steps
            loss = self.step.loss.item() / steps
            if not math.isfinite(loss):
                raise ClientError("its loss became infinite or NaN; a lower train.lr may help")
        # The last step's loss is that of the weights before it.
        if not finite(self.method.state.floats):
            raise ClientError("its weights became infinite or NaN; a lower train.lr may help")
        return Metrics(
            loss=loss,
            steps=steps,
            images=steps * size,
            embedding_std=spread(out.z),
            effective_rank=effective_rank(out.h),
            alignment=alignment(out.h),
            uniformity=uniformity(out.h),
            seconds=time.perf_counter() - started,
        )

    def _step_for(self, size: int) -> Step | CapturedSteps:
        """Return the step for batches of a size: only those of full size are compiled."""
        if size != self.settings.batch:
            return self._plain_step
        return self._captured_step or self.step

    def _order(self, pixels: Pixels, task: TrainingTask) -> Tensor:
        """Draw the order of a client's images for one epoch."""
        stream = task.generator
        return torch.randperm(len(pixels), generator=stream, device=stream.device)

    @torch.no_grad()
    def measure(
        self, task: TrainingTask, constants: Constants, *objectives: Objective
    ) -> list[float]:
        """Return the values of objectives on one batch of a step, without changing the method."""
        method = self.method
        training = method.training
        with self.active(), CAPTURE_LOCK.shared():
            pixels = as_pixels(task.pixels, self.device)
            before = method.state.clone()
            size = min(self.settings.batch, len(pixels))
            index, images = next(iter(pixels.batches(self._order(pixels, task), size)))
            batch = self._plain_step.batch(self._inputs(task, index, images))
            self.step.refresh()
            try:
                out = method.train()(batch)
                return [objective(method, batch, out, constants).item() for objective in objectives]
            finally:
                method.train(training)
                method.state.load(before)  # running statistics have changed
                method.uncounted_batches = 0

    @contextlib.contextmanager
    def eval_mode(self) -> Iterator[Method]:
        """Yield the resident method in eval mode, without gradients; then restore its mode.

        Layers that run outside a step run in this block: it waits while another thread records.
        """
        with self._mode(training=False) as method:
            yield method

    @contextlib.contextmanager
    def train_mode(self) -> Iterator[Method]:
        """Yield the resident method in training mode, without gradients; then restore its mode.

        Layers run in plain torch: which kernels the last step left selected depends on the client
        that ran it.
        """
        self.method.compile_with(None)
        with self._mode(training=True) as method:
            yield method

    @contextlib.contextmanager
    def _mode(self, training: bool) -> Iterator[Method]:
        before = self.method.training
        self.method.train(training)
        try:
            with CAPTURE_LOCK.shared(), torch.no_grad():
                yield self.method
        finally:
            self.method.train(before)

    def embed(
        self, pixels: Tensor | Pixels, output: Literal["h", "z", "p"] = "h", batch: int = 512
    ) -> Tensor:
        """Return features (n, d) of clean images (n, C, H, W) in eval mode.

        `output` selects the backbone's, the projector's or the predictor's.
        """
        features = []
        with self.eval_mode() as method:
            for images in as_pixels(pixels, self.device).chunks(batch):
                encoded = method.encode(method.clean(images))
                features.append(getattr(encoded, output))
            return torch.cat(features)

    def _inputs(self, task: TrainingTask, index: Tensor, images: Tensor) -> Inputs:
        stream = task.generator
        n = len(index)
        uniforms = tuple(views.draw(g.count * n, stream, self.device) for g in self.method.views)
        labels = task.labels
        if labels is not None:
            labels = labels[index]
        draws = {**self.method.draw(n, stream), **task.draw(n, stream)}
        return Inputs(index, images, uniforms, labels=labels, draws=draws)


def _check_trainable(method: Method) -> None:
    """Raise an error if a trained part has a parameter that takes no gradient."""
    for name, parameter in method.named_parameters():
        part = name.split(".")[0]
        if not parameter.requires_grad and part in method.trained:
            raise TypeError(
                f"parameter {name} has requires_grad=False, but it is in a trained part of the "
                "method: register it as a buffer instead"
            )


def resolve_mode(mode: str, device: torch.device) -> str:
    """Return the mode of training on a device, for "auto" the fastest.

    eager: plain torch. compiled: fewer passes over memory. captured: compiled as one CUDA graph,
    or eager as one if nothing can be compiled.
    """
    if mode == "captured" and device.type != "cuda":
        raise ConfigError(
            f'train.mode = "captured" needs a CUDA device, but the device is "{device}": '
            'set train.mode = "auto"'
        )
    if mode == "compiled":
        problem = kernels.unavailable_reason(device)
        if problem:
            raise ConfigError(
                f'train.mode = "compiled" is not possible here: {problem}. Set train.mode = "auto"'
            )
    if mode == "auto":
        return "captured" if device.type == "cuda" else "eager"
    return mode


def resolve_precision(precision: str, device: torch.device) -> str:
    """Return the precision of training on a device: for "auto", bf16 on CUDA and fp32 on a CPU."""
    if precision == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    return precision
