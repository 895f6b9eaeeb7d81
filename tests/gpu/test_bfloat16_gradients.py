"""Gradients in bfloat16, computed by our kernels, are as accurate as those of autocast."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from gpu_trainers import (
    CUDA,
    OBJECTIVE,
    make_gpu_trainer,
    random_batch,
    train_steps,
)
from torch import Tensor

from fedssl.core.state.layout import PARAMETERS
from fedssl.training.optimizers import SGD
from fedssl.training.trainer import Trainer, TrainingTask

pytestmark = pytest.mark.usefixtures("exact_arithmetic")

FULL = {"hidden": 4096, "dim": 2048}
BATCHES = 10


def full_trainer(name: str, mode: str, precision: str) -> Trainer:
    return make_gpu_trainer(name, mode, precision=precision, batch=128, lr=0.03, sizes=FULL)


@pytest.mark.parametrize("name", ["byol", "simclr"])
def test_bfloat16_gradients(name: str, pixels: Tensor) -> None:
    """Compare each layer's gradient with that in float32, before training and after 200 steps.

    At full size (ResNet-18, heads of 4096 and 2048, batches of 128), two statements hold:

    The error of our kernels is at most 1.5 times the error of autocast.

    Our gradient is neither shorter nor longer than that of autocast: along the gradient in float32,
    they differ by at most 0.02 of its norm plus three standard deviations of the difference of two
    such errors, assuming that channels round independently.
    """
    trained = full_trainer(name, "captured", "bf16")
    reference = full_trainer(name, "eager", "fp32")
    autocast = full_trainer(name, "eager", "bf16")
    ours = full_trainer(name, "compiled", "bf16")
    failures = []
    for steps in (0, 200):
        train_steps(trained, pixels, steps)
        for trainer in (reference, autocast, ours):
            trainer.method.state.load(trained.method.state)
        expected = mean_gradients(reference, pixels)
        of_autocast = mean_gradients(autocast, pixels)
        of_ours = mean_gradients(ours, pixels)
        # Added to every norm: a layer with almost no gradient is not compared exactly.
        slack = 1e-3 * max(gradient.norm() for gradient in expected.values())
        for layer, gradient in expected.items():
            size = gradient.norm() + slack
            autocast_error = (of_autocast[layer] - gradient).norm() / size
            our_error = (of_ours[layer] - gradient).norm() / size
            longer = ((of_ours[layer] - of_autocast[layer]) * gradient).sum()
            longer = longer / gradient.norm() / size
            deviation = autocast_error * math.sqrt(2 / len(gradient))
            line = (
                f"{name}, {layer} after {steps} steps: error of autocast {autocast_error:.3f}, "
                f"of ours {our_error:.3f}, longer by {longer:+.4f}"
            )
            print(line)
            accurate = our_error < 1.5 * autocast_error + 0.01
            if not accurate or longer.abs() >= 0.02 + 3 * deviation:
                failures.append(line)
    assert not failures


def mean_gradients(trainer: Trainer, pixels: Tensor) -> dict[str, Tensor]:
    """Return the mean gradient of each parameter over ten batches, as (channels, …).

    SGD's momentum after one step with a learning rate of 0 is the gradient plus the weight decay.
    """
    optimizer = trainer.step.optimizer
    assert isinstance(optimizer, SGD)
    total = torch.zeros_like(optimizer.row)
    generator = torch.Generator(CUDA).manual_seed(1)
    stop = threading.Event()
    task = TrainingTask(pixels, None, generator, lr=0.0, progress=0.0, stop=stop)
    initial = trainer.method.state.clone()
    trainer.method.train()
    for _ in range(BATCHES):
        trainer.method.state.load(initial)  # the step before has changed the target
        trainer.step.begin(0.0, 0.0)
        trainer.step.refresh()
        batch = random_batch(trainer, len(pixels), generator)
        trainer.step(trainer._inputs(task, batch, pixels[batch]), OBJECTIVE, {})
        total += optimizer.buffer - trainer.settings.weight_decay * optimizer.row
    layout = trainer.method.state.layout.pick(trainer.method.trained, PARAMETERS)
    gradients = {}
    for entry in layout.entries:
        start = layout.offsets[entry.name]
        rows = total[start : start + entry.size].view(entry.shape[0], -1)
        gradients[entry.name] = rows / BATCHES
    return gradients
