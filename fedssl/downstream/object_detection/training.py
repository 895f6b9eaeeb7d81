"""The iterations of a fine-tuning: steps, log, checkpoints, and a stop that loses no work.

torchvision draws random numbers (the anchors and regions that a step samples) from torch's default
generator. It is seeded again for every iteration, so that a fine-tuning that is killed and resumed
ends, on a CPU, with the same bits as one that was not.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedssl.core.console import Advance
from fedssl.core.errors import RunError
from fedssl.core.seeds import derive
from fedssl.downstream.object_detection.checkpoints import Checkpoint, Checkpoints
from fedssl.downstream.object_detection.loader import Batches, Sample
from fedssl.downstream.object_detection.maskrcnn import set_training_mode
from fedssl.downstream.object_detection.settings import DetectionSettings
from fedssl.runs.local import STOPPING, Interrupted
from fedssl.runs.rounds_log import RoundsLog

LOG_EVERY = 20  # iterations
SAVE_EVERY = 300.0  # seconds


class Training:
    """The training of one process in a fine-tuning's directory."""

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        settings: DetectionSettings,
        *,
        folder: Path,
        device: torch.device,
    ) -> None:
        self.model = model
        self.batches = batches
        self.settings = settings
        self.folder = folder
        self.device = device
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.optimizer = _build_optimizer(model, settings)
        # Since the last record:
        self._loss_sums: dict[str, Tensor] = {}
        self._steps = 0
        self._started = time.perf_counter()

    def train(
        self, resumed: Checkpoint | None, advance: Advance, save_every: float = SAVE_EVERY
    ) -> None:
        """Run the remaining iterations and write a checkpoint of the last."""
        first = 0
        if resumed is not None:
            self._load(resumed)
            first = resumed.iteration
            if first >= self.settings.iterations:
                return
        log = RoundsLog(self.folder / "log.jsonl", first, "iteration")
        set_training_mode(self.model, self.settings)
        with _stop_on_signal() as stop, _private_randomness(self.device):
            self._run(first, stop, log, advance=advance, save_every=save_every)
            self._save(self.settings.iterations)

    def _run(
        self,
        first: int,
        stop: threading.Event,
        log: RoundsLog,
        *,
        advance: Advance,
        save_every: float,
    ) -> None:
        """Train, log and save until the last iteration or until a signal sets `stop`."""
        last = self.settings.iterations
        saved = time.monotonic()
        shown = first
        self._started = time.perf_counter()
        for iteration, samples in enumerate(self.batches.samples(first, last), first):
            self._step(iteration, [sample.to(self.device) for sample in samples])
            done = iteration + 1
            if done % LOG_EVERY == 0 or done == last or stop.is_set():
                record = self._record(done)
                log.append(record)
                advance(done - shown, _note(record))
                shown = done
                is_due = stop.is_set() or time.monotonic() - saved >= save_every
                if done < last and is_due:
                    self._save(done)
                    saved = time.monotonic()
            if stop.is_set() and done < last:
                raise Interrupted(
                    f"stopped after iteration {done:,} of {last:,}; run the same command to resume"
                )

    def _step(self, iteration: int, samples: list[Sample]) -> None:
        torch.manual_seed(derive(self.settings.seed, "detection step", iteration))
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr_at(iteration)
        self.optimizer.zero_grad()
        images = [sample.image for sample in samples]
        targets = [sample.target for sample in samples]
        losses = self.model(images, targets)
        sum(losses.values()).backward()
        self.optimizer.step()
        for name, loss in losses.items():
            if name not in self._loss_sums:
                self._loss_sums[name] = torch.zeros((), device=self.device)
            self._loss_sums[name] = self._loss_sums[name] + loss.detach()
        self._steps += 1

    def _record(self, done: int) -> dict[str, Any]:
        """Return the record of the iterations since the last one, as plain values.

        A RunError if the loss is not finite.
        """
        losses = {}
        for name, loss_sum in self._loss_sums.items():
            losses[name.removeprefix("loss_")] = float(loss_sum) / self._steps
        total = sum(losses.values())
        seconds = time.perf_counter() - self._started
        images = self._steps * self.batches.batch
        if not math.isfinite(total):
            raise RunError(
                f"the loss became infinite or NaN by iteration {done:,}: "
                f"start again with an lr below {self.settings.peak_lr:g}"
            )
        self._loss_sums = {}
        self._steps = 0
        self._started = time.perf_counter()
        return {
            "iteration": done,
            "of": self.settings.iterations,
            "rate": self.settings.lr_at(done - 1),
            "loss": total,
            "losses": losses,
            "seconds": seconds,
            "images_per_s": images / seconds,
        }

    def _save(self, done: int) -> None:
        momenta = {}
        for name, parameter in self.model.named_parameters():
            momentum = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                momenta[name] = momentum
        self.checkpoints.save(done, self.model.state_dict(), momenta)

    def _load(self, resumed: Checkpoint) -> None:
        self.model.load_state_dict(resumed.weights)
        parameters = dict(self.model.named_parameters())
        for name, momentum in resumed.momenta.items():
            self.optimizer.state[parameters[name]]["momentum_buffer"] = momentum.to(self.device)


def _note(record: dict[str, Any]) -> str:
    return f"loss {record['loss']:.4f}  {record['images_per_s']:,.1f} images/s"


def _build_optimizer(model: nn.Module, settings: DetectionSettings) -> torch.optim.SGD:
    """Return SGD of all parameters that are not frozen, without weight decay for norm layers."""
    norm_parameters: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            norm_parameters.update(module.parameters())
    decayed = []
    not_decayed = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter in norm_parameters:
            not_decayed.append(parameter)
        else:
            decayed.append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": settings.decay},
        {"params": not_decayed, "weight_decay": 0.0},
    ]
    nonempty = [group for group in groups if group["params"]]
    return torch.optim.SGD(nonempty, settings.peak_lr, settings.momentum)


@contextlib.contextmanager
def _private_randomness(device: torch.device) -> Iterator[None]:
    """Restore torch's default generators at the end."""
    cuda_devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda_devices):
        yield


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or a termination signal sets; a second signal interrupts.

    The step in progress then ends before the training stops.
    """
    stop = threading.Event()

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        # Not print: the signal may have interrupted one.
        os.write(2, f"{STOPPING}\n".encode())

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
