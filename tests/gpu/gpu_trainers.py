"""Trainers for tests on CUDA."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

import fedssl.methods  # noqa: F401 - registers them
from fedssl import nets
from fedssl.algorithms import FedAvg
from fedssl.method import METHODS, Method
from fedssl.training.trainer import Trainer, TrainingTask, TrainSettings

CUDA = torch.device("cuda")
CLASSES = 10
OBJECTIVE = FedAvg().objective
SMALL = {"hidden": 512, "dim": 256, "queue": 512, "classes": CLASSES}


def make_gpu_trainer(
    name: str,
    mode: str,
    *,
    precision: str = "fp32",
    batch: int = 64,
    lr: float = 0.01,
    sizes: Mapping[str, int] = SMALL,
) -> Trainer:
    """Return a trainer of a method with a ResNet-18, or with a small ViT if the method needs one.

    All trainers of a method start from the same weights.
    """
    torch.manual_seed(0)
    cls = METHODS[name].Settings
    chosen = {key: value for key, value in sizes.items() if key in cls.model_fields}
    default = cls.model_fields["backbone"].default
    backbone = "vit_mini" if default.startswith("vit") else "resnet18"
    settings = cls(backbone=backbone, **chosen)
    method: Method = settings.build(nets.build(backbone, 3, "cifar"), 32, CUDA)
    method.init_local_parts(torch.Generator().manual_seed(0))
    return Trainer(method, TrainSettings(mode=mode, precision=precision, batch=batch, lr=lr))


def train_steps(trainer: Trainer, pixels: Tensor, steps: int) -> list[float]:
    """Train on random batches, the same for all trainers; return the loss of each step."""
    step = trainer._captured_step or trainer.step
    generator = torch.Generator(CUDA).manual_seed(0)
    labels = None
    if trainer.method.learns_from_labels:
        labels = torch.arange(len(pixels), device=CUDA) % CLASSES
    lr = trainer.settings.lr
    task = TrainingTask(pixels, labels, generator, lr, progress=0.0, stop=threading.Event())
    trainer.method.train()
    losses = []
    with trainer.active():
        trainer.step.begin(task.lr, task.progress)
        constants = trainer.method.before_epoch(lambda: trainer.embed(pixels))
        trainer.step.refresh()
        for _ in range(steps):
            batch = random_batch(trainer, len(pixels), generator)
            trainer.step.loss.zero_()
            step(trainer._inputs(task, batch, pixels[batch]), OBJECTIVE, constants)
            losses.append(trainer.step.loss.item())
    return losses


def random_batch(trainer: Trainer, images: int, generator: torch.Generator) -> Tensor:
    """Return the indices of a batch of images."""
    return torch.randint(images, (trainer.settings.batch,), generator=generator, device=CUDA)
