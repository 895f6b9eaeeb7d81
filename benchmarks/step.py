"""Measure images and TFLOP per second of a training step, by method and mode.

    python -m benchmarks.step [--device cuda] [--methods byol,simclr,simsiam,mocov2]
                              [--modes eager,captured] [--steps 100] [--out results/speed/step.json]

Runs `Trainer.fit` for one epoch of random images (n, 3, 32, 32) on the device: views, forward,
backward, optimizer and target, and the work of `fit` before and after its steps. On CUDA, ResNet-18
with each method's default heads; on a CPU, to finish in a minute, a small network with small heads.
Modes alternate; a figure is the median of the repeats, between synchronisations.
TFLOP are those of convolutions and matrix products in one eager step; a multiplication and an
addition count as two. They are compared with the product of square matrices of random numbers, 8192
in bf16 on CUDA and 1024 in fp32 on a CPU, timed between the repeats in the same process. A mode
that the settings reject is skipped; captured-deterministic is captured with `train.deterministic`.
FLOP are counted first, so that CUDA is initialised and cuDNN has chosen its kernels (`warm_up_s`)
before any mode is built. `first_step_s` is the time of a mode's first call of `fit`, with one
batch; `startup_s` is the additional time of building and the first few steps. Each mode starts with
nothing compiled in this process; compilers use their caches on disk, unless
TORCHINDUCTOR_FORCE_DISABLE_CACHES=1. Memory, on CUDA only, is the increase over the images during
startup: the peak of allocated memory, and the memory that stays reserved.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.clock import digits, seconds, spread, timed
from benchmarks.machine import machine
from fedssl.algorithms import FedAvg
from fedssl.core.devices.precision import numerics
from fedssl.core.errors import ConfigError
from fedssl.experiment import federation_setup
from fedssl.experiment.experiment import Experiment
from fedssl.method import METHODS
from fedssl.training.trainer import Trainer, TrainingTask

WARM = 3  # steps after the first: a step is captured at the second and replayed after that
SMALL = {"hidden": 512, "dim": 128}
STRICT = "-deterministic"  # a mode with train.deterministic


@dataclass(frozen=True)
class Case:
    """The training of every mode."""

    backbone: str
    small: bool  # sizes of the heads
    steps: int
    batch: int = 128
    size: int = 32
    precision: str = "auto"

    def pixels(self, device: torch.device) -> Tensor:
        shape, stream = (
            (self.steps * self.batch, 3, self.size, self.size),
            torch.Generator().manual_seed(0),
        )
        return torch.randint(256, shape, dtype=torch.uint8, generator=stream).to(device)

    def build(self, method: str, mode: str, device: torch.device) -> Trainer:
        heads = {
            k: v
            for k, v in SMALL.items()
            if self.small and k in METHODS[method].Settings.model_fields
        }
        experiment = Experiment(
            data="given",
            clients=1,
            method={"name": method, "backbone": self.backbone, **heads},
            train={
                "batch": self.batch,
                "mode": mode.removesuffix(STRICT),
                "precision": self.precision,
                "threads": torch.get_num_threads(),
            },
        )
        (trainer,) = federation_setup.build_trainers(
            experiment, (3, self.size, self.size), device, 1
        )
        trainer.method.init_local_parts(torch.Generator().manual_seed(0))
        return trainer


class Fit:
    """Call `Trainer.fit` repeatedly, as a client does."""

    objective = FedAvg().objective  # one for all: a captured step belongs to an objective

    def __init__(self, trainer: Trainer, pixels: Tensor) -> None:
        self.trainer, self.pixels = trainer, pixels
        self._stream, self._stop = torch.Generator(pixels.device).manual_seed(0), threading.Event()

    def __call__(self, steps: int) -> float:
        """Train, and return the mean loss."""
        settings = self.trainer.settings
        pixels = self.pixels[: steps * settings.batch]
        task = TrainingTask(pixels, None, self._stream, settings.lr, 0.0, self._stop)
        done = self.trainer.fit(task, self.objective, {})
        assert done.steps == steps
        return done.loss


def matmul_tflops(device: torch.device) -> float:
    """Return the TFLOP/s of a product of square matrices."""
    n, dtype, times = (
        (8192, torch.bfloat16, 50) if device.type == "cuda" else (1024, torch.float32, 5)
    )
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)

    def multiply() -> None:
        for _ in range(times):
            torch.mm(a, b, out=out)

    multiply()
    return 2 * n**3 * times / seconds(multiply, device) / 1e12


def count_flops(fit: Fit) -> int:
    """Return the FLOP of one step: those of two minus those of one, to exclude other work."""
    counted = []
    for steps in (1, 2):
        with FlopCounterMode(display=False) as counter:
            fit(steps)
        counted.append(int(counter.get_total_flops()))
    return counted[1] - counted[0]


def start(case: Case, method: str, mode: str, pixels: Tensor) -> tuple[Fit, dict[str, Any]]:
    """Return a trainer past its first steps, and its startup cost, including those steps."""
    device = pixels.device
    torch.compiler.reset()
    held, reserved = _memory(device)
    trainer, building = timed(lambda: case.build(method, mode, device), device)
    fit = Fit(trainer, pixels)
    first = seconds(lambda: fit(1), device)
    warm = seconds(lambda: fit(WARM), device)
    figures: dict[str, Any] = {
        "precision": trainer.method.precision,
        "first_step_s": digits(first, 3),
        "startup_s": building + first + warm,
    }
    if device.type == "cuda":
        figures["peak_memory_mib"] = round((torch.cuda.max_memory_allocated(device) - held) / 2**20)
        figures["reserved_mib"] = round((torch.cuda.memory_reserved(device) - reserved) / 2**20)
    return fit, figures


def _memory(device: torch.device) -> tuple[int, int]:
    """Reset the peak; return the bytes allocated and reserved now."""
    if device.type != "cuda":
        return 0, 0
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)


def measure(
    case: Case, method: str, modes: list[str], repeats: int, pixels: Tensor
) -> dict[str, Any]:
    device = pixels.device
    flops, counting = timed(
        lambda: count_flops(Fit(case.build(method, "eager", device), pixels)), device
    )
    fits, found = {}, {}
    for mode in modes:
        try:
            with numerics(device, mode.endswith(STRICT)):
                fits[mode], found[mode] = start(case, method, mode, pixels)
        except ConfigError as refusal:
            print(f"{method}, {mode}: skipped: {refusal}", flush=True)
    for mode, fit in fits.items():
        with numerics(device, mode.endswith(STRICT)):
            fit(WARM)  # graphs that the next mode's startup evicted are compiled again
    took: dict[str, list[float]] = {mode: [] for mode in fits}
    products = []
    for _ in range(repeats):
        products.append(matmul_tflops(device))
        for mode, fit in fits.items():
            with numerics(device, mode.endswith(STRICT)):
                took[mode].append(seconds(lambda fit=fit: fit(case.steps), device))  # type: ignore[misc]
    product = statistics.median(products)
    for mode in fits:
        found[mode] = _figures(case, took[mode], flops, product) | found[mode]
        found[mode]["startup_s"] = digits(
            found[mode]["startup_s"] - (1 + WARM) * found[mode]["step_ms"] / 1e3, 3
        )
    return {
        "tflop_per_step": digits(flops / 1e12),
        "warm_up_s": digits(counting, 3),
        "matmul_tflops": spread(products),
        "modes": found,
    }


def _figures(case: Case, took: list[float], flops: int, product: float) -> dict[str, Any]:
    step = statistics.median(took) / case.steps
    rate = flops / step / 1e12
    return {
        "images_per_s": digits(case.batch / step),
        "images_per_s_spread": spread([case.batch * case.steps / s for s in took]),
        "step_ms": digits(1e3 * step),
        "tflops": digits(rate),
        "share_of_matmul": digits(rate / product, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--methods", default="byol,simclr,simsiam,mocov2")
    parser.add_argument("--modes", default="eager,compiled,captured,captured-deterministic")
    parser.add_argument("--backbone", help="default: resnet18 on CUDA, cnn on a CPU")
    parser.add_argument("--steps", type=int, help="per repeat; default: 100 on CUDA, 10 on a CPU")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precision", default="auto", help="train.precision")
    parser.add_argument("--threads", type=int, default=1, help="on a CPU")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    args = parser.parse_args()
    device, cuda = torch.device(args.device), args.device == "cuda"
    torch.set_num_threads(args.threads)
    steps = max(
        args.steps or (100 if cuda else 10), WARM
    )  # there must be as many images as the first steps take
    case = Case(
        args.backbone or ("resnet18" if cuda else "cnn"), not cuda, steps, precision=args.precision
    )
    pixels, modes = case.pixels(device), args.modes.split(",")
    methods: dict[str, Any] = {}
    for name in args.methods.split(","):
        methods[name] = found = measure(case, name, modes, args.repeats, pixels)
        for mode, f in found["modes"].items():
            share = f"{f['tflops']:g} TFLOP/s, {f['share_of_matmul']:.0%} of a matrix product's"
            print(f"{name}, {mode}: {f['images_per_s']:,.0f} images/s, {share}", flush=True)
        if args.out is not None:  # after each method, so that an interrupted measurement is usable
            report = {
                "machine": machine(),
                "device": args.device,
                "case": asdict(case),
                "methods": methods,
            }
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
