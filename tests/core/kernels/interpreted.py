"""Run by test_interpreted.py with TRITON_INTERPRET=1; prints relative differences as JSON."""

from __future__ import annotations

import json
import threading
from typing import Any

import torch
from torch import Tensor

import fedssl.methods  # noqa: F401 - registers them
from fedssl import nets
from fedssl.core.kernels import update
from fedssl.method import METHODS
from fedssl.nets.norm import BatchNorm1d, BatchNorm2d
from fedssl.training.optimizers import EmaTarget, FusedSGD
from fedssl.training.trainer import Trainer, TrainingTask, TrainSettings

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "groups": {"groups": 2},
    "residual": {"groups": 2, "residual": True},
    "two readers": {"groups": 2, "two": True},
    "odd channels": {"shape": (6, 70, 4, 3), "groups": 3, "residual": True, "two": True},
    "rows": {"shape": (64, 130), "groups": 2},
    "no relu": {"relu": False, "groups": 2},
}


def relative(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().norm() / other.detach().norm())


def norm(
    shape: tuple[int, ...] = (8, 16, 6, 5),
    groups: int = 1,
    residual: bool = False,
    two: bool = False,
    relu: bool = True,
) -> dict[str, float]:
    torch.manual_seed(0)
    results = []
    weights = torch.randn(2, shape[1])
    images, skip, dy, dy2 = (torch.randn(shape) + 3 for _ in range(4))
    for fused in (True, False):
        layer = (BatchNorm2d if len(shape) == 4 else BatchNorm1d)(shape[1], relu=relu)
        layer.groups = groups
        layer.fused = fused
        with torch.no_grad():
            layer.weight.copy_(weights[0])
            layer.bias.copy_(weights[1])
        x = images.clone().requires_grad_()
        r = skip.clone().requires_grad_() if residual else None
        y, again = layer.twice(x, r)
        leaves = [x, layer.weight, layer.bias, *([] if r is None else [r])]
        loss = (y * dy).sum() + ((again * dy2).sum() if two else 0)
        grads = torch.autograd.grad(loss, leaves)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        results.append([y, again, *grads, layer.running_mean, layer.running_var])
    names = [
        "y",
        "again",
        "dx",
        "dweight",
        "dbias",
        *(["dresidual"] if residual else []),
        "mean",
        "var",
    ]
    return {name: relative(a, b) for name, a, b in zip(names, *results, strict=True)}


def sgd() -> float:
    row, buffer, grad = torch.randn(3, 5000)
    rate = torch.tensor(0.1)
    moved = 0.9 * buffer + grad + 0.01 * row
    expected = row - rate * moved
    update.sgd(row, None, buffer, grad, rate, 0.01, 0.9)
    return max(relative(row, expected), relative(buffer, moved))


def follow() -> float:
    """The target follows a slice of the row; a separate gradient tensor crosses the slice's end."""
    row, grad = torch.randn(2, 15000)
    target = torch.randn(6000)
    piece = torch.randn(5000)
    optimizer = FusedSGD(row, 0.01, 0.9)
    optimizer.lr.fill_(0.1)
    optimizer.ema_target = EmaTarget(target, None, 0.3, 3001)
    expected = row - 0.1 * (torch.cat([grad[:6000], piece, grad[11000:]]) + 0.01 * row)
    moved = torch.lerp(target, expected[3001:9001], 0.3)
    optimizer.step(grad, {6000: piece})
    return max(relative(row, expected), relative(target, moved))


def lerp() -> float:
    row, other = torch.randn(2, 5000)
    expected = torch.lerp(row, other, 0.3)
    update.lerp(row, None, other, 0.3)
    return relative(row, expected)


def training(name: str, seed: int) -> float:
    rows = []
    pixels = torch.randint(
        256, (32, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    for fused in (True, False):
        torch.manual_seed(seed)
        cls = METHODS[name].Settings
        sizes = {"hidden": 32, "dim": 16, "queue": 64, "width": 8, "classes": 5}
        small = {k: v for k, v in sizes.items() if k in cls.model_fields}
        backbone = "vit_mini" if cls.model_fields["backbone"].default.startswith("vit") else "cnn"
        method = cls(backbone=backbone, **small).build(nets.build(backbone, 3, "cifar"), 16)
        trainer = Trainer(method, TrainSettings(batch=8, mode="eager", lr=0.01))
        method.fuse(fused)
        labels = torch.arange(32) % 5 if method.learns_from_labels else None
        task = TrainingTask(
            pixels, labels, torch.Generator().manual_seed(seed), 0.01, 0.0, threading.Event()
        )
        trainer.fit(task, lambda m, batch, out, given: m.loss(out, given), {})
        rows.append(method.state.floats.clone())
    return relative(*rows)


if __name__ == "__main__":
    differences = {
        "norm": {name: norm(**case) for name, case in CASES.items()},
        "sgd": sgd(),
        "follow": follow(),
        "lerp": lerp(),
        "training": {name: [training(name, seed) for seed in (0, 1)] for name in METHODS.names()},
    }
    print(json.dumps(differences))
