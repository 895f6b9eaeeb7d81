"""The iterations of a fine-tuning: steps, log, checkpoints, and a stop that loses nothing.

Random numbers that torchvision draws (which anchors and regions a step is about) come from torch's default generator.
It is seeded anew for every iteration, so that a fine-tuning which is killed and goes on ends, on a CPU, with the same
bits as one that was not.
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
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedssl.drive import STOPPING, Interrupted
from fedssl.errors import RunError
from fedssl.finetune.batches import Batches, Sample
from fedssl.finetune.checkpoints import Checkpoint, Checkpoints
from fedssl.finetune.maskrcnn import training_mode
from fedssl.finetune.settings import DetectionSettings
from fedssl.report.rounds import RoundsLog
from fedssl.seeds import derive

LOG_EVERY = 20  # iterations
SAVE_EVERY = 300.0  # seconds


class Progress(Protocol):
    def line(self, line: dict[str, Any]) -> None:
        """Some iterations are done; `line` is their record."""


class Training:
    """One process's turn at a fine-tuning in its directory."""

    def __init__(
        self, model: nn.Module, batches: Batches, settings: DetectionSettings, folder: Path, device: torch.device
    ) -> None:
        self.model, self.batches, self.settings, self.folder, self.device = model, batches, settings, folder, device
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.optimizer = _optimizer(model, settings)
        self._sums: dict[str, Tensor] = {}
        self._losses, self._since = 0, time.perf_counter()

    def train(self, resumed: Checkpoint | None, progress: Progress, save_every: float = SAVE_EVERY) -> None:
        """The iterations that are left; ends with a checkpoint of the last."""
        first, last = resumed.iteration if resumed else 0, self.settings.iterations
        if resumed is not None:
            self._load(resumed)
        if resumed is None or first < last:
            log, saved = RoundsLog(self.folder / "log.jsonl", first, "iteration"), time.monotonic()
            training_mode(self.model, self.settings)
            with _stoppable() as stop, _own_randomness(self.device):
                self._since = time.perf_counter()
                for iteration, samples in enumerate(self.batches.samples(first, last), first):
                    self._step(iteration, [sample.to(self.device) for sample in samples])
                    done = iteration + 1
                    if done % LOG_EVERY == 0 or done == last or stop.is_set():
                        line = self._record(done)
                        log.append(line)
                        progress.line(line)
                        if done < last and (stop.is_set() or time.monotonic() - saved >= save_every):
                            self._save(done)
                            saved = time.monotonic()
                    if stop.is_set() and done < last:
                        raise Interrupted(f"stopped after iteration {done:,} of {last:,}; the same command goes on")
                self._save(last)

    def _step(self, iteration: int, samples: list[Sample]) -> None:
        torch.manual_seed(derive(self.settings.seed, "detection step", iteration))
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate(iteration)
        self.optimizer.zero_grad()
        losses = self.model([sample.image for sample in samples], [sample.target for sample in samples])
        sum(losses.values()).backward()
        self.optimizer.step()
        for name, loss in losses.items():
            self._sums[name] = self._sums.get(name, torch.zeros((), device=self.device)) + loss.detach()
        self._losses += 1

    def _record(self, done: int) -> dict[str, Any]:
        """The iterations since the last record as plain values; a loss that is no number ends the fine-tuning."""
        losses = {name.removeprefix("loss_"): float(total) / self._losses for name, total in self._sums.items()}
        total, seconds = sum(losses.values()), time.perf_counter() - self._since
        images = self._losses * self.batches.batch
        if not math.isfinite(total):
            raise RunError(
                f"the loss is not finite by iteration {done:,}: start again with an lr below {self.settings.peak:g}"
            )
        self._sums, self._losses, self._since = {}, 0, time.perf_counter()
        return {
            "iteration": done,
            "of": self.settings.iterations,
            "rate": self.settings.rate(done - 1),
            "loss": total,
            "losses": losses,
            "seconds": seconds,
            "images_per_s": images / seconds,
        }

    def _save(self, done: int) -> None:
        names: dict[Tensor, str] = {parameter: name for name, parameter in self.model.named_parameters()}
        momenta = {
            names[parameter]: state["momentum_buffer"]
            for parameter, state in self.optimizer.state.items()
            if state.get("momentum_buffer") is not None
        }
        self.checkpoints.save(done, self.model.state_dict(), momenta)

    def _load(self, resumed: Checkpoint) -> None:
        self.model.load_state_dict(resumed.weights)
        parameters = dict(self.model.named_parameters())
        for name, momentum in resumed.momenta.items():
            self.optimizer.state[parameters[name]]["momentum_buffer"] = momentum.to(self.device)


def _optimizer(model: nn.Module, settings: DetectionSettings) -> torch.optim.SGD:
    """Of all that is not frozen; norm layers are not pulled towards zero."""
    norms = {p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()}
    moving = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in moving if p not in norms], "weight_decay": settings.decay},
        {"params": [p for p in moving if p in norms], "weight_decay": 0.0},
    ]
    return torch.optim.SGD([group for group in groups if group["params"]], settings.peak, settings.momentum)


@contextlib.contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@contextlib.contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """An event that Ctrl-C and a termination signal set, in place of cutting a step in two; a second one does."""
    stop = threading.Event()

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        os.write(2, f"{STOPPING}\n".encode())  # not print: the signal may have come in the middle of one

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    found = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)
