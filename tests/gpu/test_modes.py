"""Eager, compiled and captured steps train the same model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from gpu_trainers import (
    CUDA,
    OBJECTIVE,
    make_gpu_trainer,
    train_steps,
)
from torch import Tensor

from fedssl.method import METHODS
from fedssl.training.trainer import Trainer, TrainingTask

pytestmark = pytest.mark.usefixtures("exact_arithmetic")

STEPS = 50


class Difference(NamedTuple):
    """How far losses are from those of eager steps, relative to the mean of the latter."""

    first: float
    largest: float

    def __str__(self) -> str:
        return f"{self.first:.1e} {self.largest:.1e}"


@pytest.mark.parametrize("name", METHODS.names())
def test_all_modes_compute_the_same_losses(
    name: str,
    pixels: Tensor,
    record_property: Callable[[str, object], None],
) -> None:
    """Compare 50 steps in float32.

    Captured and compiled steps compute identical losses. The first loss is that of an eager step
    up to 1e-4. Training then amplifies rounding errors, a thousandfold in a few steps, so no fixed
    tolerance fits the later losses: they may differ from eager ones by up to three times as much
    as the losses of eager training whose initial weights are changed by 1e-7 or 1e-6.
    """

    def losses(mode: str, perturbation: float = 0.0) -> Tensor:
        trainer = make_gpu_trainer(name, mode)
        trainer.method.state.floats.mul_(1 + perturbation)
        return torch.tensor(train_steps(trainer, pixels, STEPS))

    eager = losses("eager")
    perturbed = [difference(losses("eager", by), eager) for by in (1e-7, 1e-6)]
    largest_perturbed = max(perturbed, key=lambda one: one.largest)
    compiled = losses("compiled")
    captured = losses("captured")
    fused = difference(compiled, eager)

    record_property("compiled", str(fused))
    record_property("perturbed", str(largest_perturbed))
    print(f"{name}: compiled differs from eager by {fused}, perturbed by {largest_perturbed}")
    assert torch.equal(captured, compiled)
    assert fused.first < 1e-4
    assert fused.largest <= 3 * largest_perturbed.largest


def difference(losses: Tensor, eager: Tensor) -> Difference:
    relative = (losses - eager).abs() / eager.abs().mean()
    return Difference(relative[0].item(), relative.max().item())


def test_deterministic_steps_repeat(pixels: Tensor) -> None:
    first = make_gpu_trainer("byol", "captured", precision="bf16")
    second = make_gpu_trainer("byol", "captured", precision="bf16")
    assert train_steps(first, pixels, 12) == train_steps(second, pixels, 12)
    assert torch.equal(first.method.state.floats, second.method.state.floats)


def test_concurrent_trainers_compute_the_same_bits(pixels: Tensor) -> None:
    """Three threads on three streams train as three trainers do one after the other."""

    def make() -> Trainer:
        return make_gpu_trainer("byol", "captured", precision="bf16")

    def train(trainer: Trainer, seed: int) -> None:
        generator = torch.Generator(CUDA).manual_seed(seed)
        stop = threading.Event()
        task = TrainingTask(pixels[:640], None, generator, lr=0.01, progress=0.0, stop=stop)
        trainer.fit(task, OBJECTIVE, {})

    sequential = [make() for _ in range(3)]
    concurrent = [make() for _ in range(3)]
    for seed, trainer in enumerate(sequential):
        train(trainer, seed)
    threads = [
        threading.Thread(target=train, args=(trainer, seed))
        for seed, trainer in enumerate(concurrent)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(sequential, concurrent, strict=True):
        assert torch.equal(one.method.state.floats, other.method.state.floats)
