"""Adapters on CUDA: frozen weights are held once, and recorded steps do not change them."""

from __future__ import annotations

import threading

import torch
from factories import random_pixels
from torch import Tensor

import fedssl.methods  # noqa: F401 - registers them
from fedssl import nets
from fedssl.algorithms import FedAvg
from fedssl.core.devices.precision import numerics
from fedssl.method import METHODS, Method
from fedssl.nets.adapters import frozen_names
from fedssl.training.trainer import Trainer, TrainingTask, TrainSettings

CUDA = torch.device("cuda")


def adapted(backbone: str) -> Method:
    torch.manual_seed(0)
    settings = METHODS["byol"].Settings(backbone=backbone, hidden=64, dim=32, adapters={"rank": 4})
    method: Method = settings.build(nets.build(backbone), 32, CUDA)
    method.init_local_parts(torch.Generator().manual_seed(0))
    return method


def trained(backbone: str, mode: str, precision: str) -> tuple[Tensor, Tensor]:
    """Return the change of the row, and the frozen weights, after 4 steps."""
    settings = TrainSettings(mode=mode, precision=precision, batch=16, lr=0.01, epochs=1)
    trainer = Trainer(adapted(backbone), settings)
    method = trainer.method
    start = method.state.floats.clone()
    stream = torch.Generator(CUDA).manual_seed(0)
    pixels = random_pixels(64, size=32).to(CUDA)
    task = TrainingTask(pixels, None, stream, lr=0.01, progress=0.0, stop=threading.Event())
    trainer.fit(task, FedAvg().objective, {})
    names = frozen_names(method.backbone)
    frozen = [method.backbone.get_buffer(name).flatten() for name in names]
    return method.state.floats - start, torch.cat(frozen)


def test_the_momentum_copy_shares_frozen_weights_on_the_device() -> None:
    method = adapted("vit_mini")
    target = method.target["backbone"]
    for name in frozen_names(method.backbone):
        frozen = method.backbone.get_buffer(name)
        assert frozen.is_cuda
        assert target.get_buffer(name) is frozen


def test_captured_steps_train_what_eager_ones_do() -> None:
    """Four steps, of which three are replayed, differ by 1e-6 and 1.4e-3 (an H200, relative).

    After 20 steps it is 0.02 and 0.07. Eager training then differs by as much from itself if the
    weights are changed by 1e-7 before it, so more steps would show nothing.
    """
    for backbone in ("vit_mini", "resnet18"):
        with numerics(CUDA, deterministic=True, exact=True):
            eager, before = trained(backbone, "eager", "fp32")
            captured, after = trained(backbone, "captured", "fp32")
        assert eager.norm() > 0
        assert (captured - eager).norm() < 0.01 * eager.norm()
        assert torch.equal(before, after)


def test_captured_steps_in_bfloat16_change_factors_only() -> None:
    fresh = adapted("resnet18").backbone
    names = frozen_names(fresh)
    expected = torch.cat([fresh.get_buffer(name).flatten() for name in names])
    change, frozen = trained("resnet18", "captured", "bf16")
    assert change.norm() > 0
    assert torch.equal(frozen, expected)
