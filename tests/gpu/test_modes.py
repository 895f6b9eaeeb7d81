"""Three modes of one step: eager, compiled and captured train the same model."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedssl.methods  # noqa: F401 - registers them
from fedssl import nets
from fedssl.algorithms import FedAvg
from fedssl.core.devices.precision import numerics
from fedssl.core.state.layout import PARAMETERS
from fedssl.data.fashion_mini import FashionMini
from fedssl.method import METHODS, Method
from fedssl.nets.norm import BatchNorm2d
from fedssl.training.optimizers import SGD, EmaTarget, FusedSGD
from fedssl.training.trainer import Trainer, TrainingTask, TrainSettings

CUDA = torch.device("cuda")
STEPS = 50
CLASSES = 10
OBJECTIVE = FedAvg().objective


@pytest.fixture(scope="module")
def pixels() -> Tensor:
    """Real images (2048, 3, 32, 32): noise would make rounding errors grow from step to step."""
    images = FashionMini().load(Path(), lambda line: None).train.pixels[:2048].float()
    large = torch.nn.functional.interpolate(images, 32).to(torch.uint8)
    return large.expand(-1, 3, -1, -1).contiguous().to(CUDA)


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with numerics(CUDA, deterministic=True, exact=True):
        yield


SMALL = {"hidden": 512, "dim": 256, "queue": 512, "classes": CLASSES}


def trainer(
    name: str,
    mode: str,
    precision: str = "fp32",
    batch: int = 64,
    lr: float = 0.01,
    sizes: Mapping[str, int] = SMALL,
) -> Trainer:
    torch.manual_seed(0)
    cls = METHODS[name].Settings
    chosen = {k: v for k, v in sizes.items() if k in cls.model_fields}
    backbone = "vit_mini" if cls.model_fields["backbone"].default.startswith("vit") else "resnet18"
    method: Method = cls(backbone=backbone, **chosen).build(
        nets.build(backbone, 3, "cifar"), 32, CUDA
    )
    method.init_local_parts(torch.Generator().manual_seed(0))
    return Trainer(method, TrainSettings(mode=mode, precision=precision, batch=batch, lr=lr))


def curve(model: Trainer, pixels: Tensor, steps: int = STEPS) -> list[float]:
    """Return the loss of each step."""
    step = model._captured or model.step
    stream = torch.Generator(CUDA).manual_seed(0)
    labels = (
        torch.arange(len(pixels), device=CUDA) % CLASSES
        if model.method.learns_from_labels
        else None
    )
    task = TrainingTask(pixels, labels, stream, model.settings.lr, 0.0, threading.Event())
    model.method.train()
    losses = []
    with model.active():
        model.step.begin(task.rate, task.progress)
        constants = model.method.before_epoch(lambda: model.embed(pixels))
        model.step.refresh()
        for _ in range(steps):
            rows = torch.randint(
                len(pixels), (model.settings.batch,), generator=stream, device=CUDA
            )
            model.step.loss.zero_()
            step(model._inputs(task, rows, pixels[rows]), OBJECTIVE, constants)
            losses.append(model.step.loss.item())
    return losses


@pytest.mark.parametrize("name", METHODS.names())
def test_modes_train_the_same(
    name: str, pixels: Tensor, record_property: Callable[[str, object], None]
) -> None:
    """float32 over 50 steps: captured and compiled losses are the same numbers. The first is
    eager's to 1e-4, and all differ from eager's by no more than three times as much as eager's own
    do when it starts from weights moved by one part in 10⁷ or 10⁶.

    So the tolerance is stated, and not in digits: training multiplies rounding errors a
    thousandfold in a few steps.
    """
    eager, twin, other, compiled, captured = (
        torch.tensor(curve(nudged(trainer(name, mode), by), pixels))
        for mode, by in (
            ("eager", 0.0),
            ("eager", 1e-7),
            ("eager", 1e-6),
            ("compiled", 0.0),
            ("captured", 0.0),
        )
    )
    off = {
        "compiled": _furthest(compiled, eager),
        "nudged": max((_furthest(t, eager) for t in (twin, other)), key=max),
    }
    for what, (first, largest) in off.items():
        record_property(what, f"{first:.1e} {largest:.1e}")
        print(
            f"{name}, {what}: off by {first:.1e} of eager's mean loss at first, by {largest:.1e} at most"
        )
    assert torch.equal(captured, compiled)
    assert off["compiled"][0] < 1e-4
    assert off["compiled"][1] <= 3 * off["nudged"][1]


def nudged(model: Trainer, by: float) -> Trainer:
    model.method.state.floats.mul_(1 + by)
    return model


def _furthest(losses: Tensor, eager: Tensor) -> tuple[float, float]:
    """Return the first step's difference and the largest, as shares of eager's mean loss."""
    off = (losses - eager).abs() / eager.abs().mean()
    return off[0].item(), off.max().item()


@pytest.mark.parametrize("name", ["byol", "simclr"])
def test_bfloat16_gradients(name: str, pixels: Tensor) -> None:
    """At full size (ResNet-18, heads of 4096 and 2048, batches of 128), before training and after
    200 steps: each layer's gradient from our kernels is no farther from float32's than 1.5 times
    what autocast's is. Nor is it shorter or longer than autocast's by more than one part in 50 and
    three standard deviations of what two such errors, if channels round independently, come to
    along the true gradient.
    """
    trained = trainer(name, "captured", "bf16", 128, 0.03, FULL)
    models = [trainer(name, mode, precision, 128, 0.03, FULL) for mode, precision in GRADIENTS]
    faults = []
    for steps in (0, 200):
        curve(trained, pixels, steps)
        for model in models:
            model.method.state.load(trained.method.state)
        truth, autocast, ours = (gradients(model, pixels) for model in models)
        least = 1e-3 * max(
            g.norm() for g in truth.values()
        )  # a layer with hardly any gradient is not held to it
        for layer, true in truth.items():
            size = true.norm() + least
            off, mine = ((g[layer] - true).norm() / size for g in (autocast, ours))
            longer = ((ours[layer] - autocast[layer]) * true).sum() / true.norm() / size
            text = f"{name}, {layer} after {steps}: autocast off by {off:.3f}, ours by {mine:.3f}, longer by {longer:+.4f}"
            print(text)
            if mine >= 1.5 * off + 0.01 or longer.abs() >= 0.02 + 3 * off * math.sqrt(
                2 / len(true)
            ):
                faults.append(text)
    assert not faults


FULL = {"hidden": 4096, "dim": 2048}
GRADIENTS = (("eager", "fp32"), ("eager", "bf16"), ("compiled", "bf16"))


def gradients(model: Trainer, pixels: Tensor) -> dict[str, Tensor]:
    """Of each parameter (channels, …), the mean over ten batches: an optimizer that goes nowhere
    has it as momentum.
    """
    total = torch.zeros_like(model.step.optimizer.row)
    stream = torch.Generator(CUDA).manual_seed(1)
    task = TrainingTask(pixels, None, stream, 0.0, 0.0, threading.Event())
    kept, optimizer = model.method.state.clone(), model.step.optimizer
    assert isinstance(optimizer, SGD)
    model.method.train()
    for _ in range(10):
        model.method.state.load(kept)  # the target has moved
        model.step.begin(0.0, 0.0)
        model.step.refresh()
        rows = torch.randint(len(pixels), (model.settings.batch,), generator=stream, device=CUDA)
        model.step(model._inputs(task, rows, pixels[rows]), OBJECTIVE, {})
        total += optimizer.buffer - model.settings.weight_decay * optimizer.row
    layout = model.method.state.layout.pick(model.method.trained, PARAMETERS)
    return {
        e.name: total[(at := layout.offsets[e.name]) : at + e.size].view(e.shape[0], -1) / 10
        for e in layout.entries
    }


def test_deterministic_steps_repeat(pixels: Tensor) -> None:
    first, second = (trainer("byol", "captured", "bf16") for _ in range(2))
    assert curve(first, pixels, 12) == curve(second, pixels, 12)
    assert torch.equal(first.method.state.floats, second.method.state.floats)


def test_trainers_side_by_side(pixels: Tensor) -> None:
    """Three threads on three streams: the bits of one after the other."""

    def work(model: Trainer, seed: int) -> None:
        task = TrainingTask(
            pixels[:640],
            None,
            torch.Generator(CUDA).manual_seed(seed),
            0.01,
            0.0,
            threading.Event(),
        )
        model.fit(task, OBJECTIVE, {})

    alone = [trainer("byol", "captured", "bf16") for _ in range(3)]
    together = [trainer("byol", "captured", "bf16") for _ in range(3)]
    for seed, model in enumerate(alone):
        work(model, seed)
    threads = [
        threading.Thread(target=work, args=(model, seed)) for seed, model in enumerate(together)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.method.state.floats, other.method.state.floats)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(256, 64, 32, 32), (256, 512, 4, 4), (6, 70, 5, 5)])
def test_normalisation(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Against float64 on the same values, and twice the same bits."""
    x, skip, dy, dy2 = (torch.randn(shape, device=CUDA, dtype=dtype) + 1 for _ in range(4))
    made = []
    for fused, kind in ((True, dtype), (True, dtype), (False, torch.float64)):
        layer = BatchNorm2d(shape[1], relu=True).to(CUDA)
        layer.groups, layer.fused = 2, fused
        layer = layer.to(torch.float64) if not fused else layer
        a, b = (
            t.to(kind).contiguous(memory_format=torch.channels_last).requires_grad_()
            for t in (x, skip)
        )
        y, again = layer.twice(a, b)
        grads = torch.autograd.grad(
            (y * dy).sum() + (again * dy2).sum(), [a, b, layer.weight, layer.bias]
        )
        made.append([y, *grads, layer.running_mean, layer.running_var])
    tolerance = (
        1e-3 if dtype == torch.float32 else 2e-2
    )  # a ReLU's mask flips where its input is next to zero
    for once, twice, truth in zip(*made, strict=True):
        assert torch.equal(once, twice)
        assert (once.double() - truth).norm() / truth.norm() < tolerance


@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize(("start", "size"), [(0, 90_000), (20_005, 60_000), (30_000, 70_000)])
def test_update(start: int, size: int, low: bool) -> None:
    """Three steps against float64: the row, its momentum and a target that follows a slice of the
    row to float32's precision, their copies to the bit. One gradient is a separate tensor in
    bfloat16 and may cross the slice's end.
    """
    n, rate, decay, momentum, share = 100_000, 0.1, 0.01, 0.9, 0.25
    row, target = torch.randn(n, device=CUDA), torch.randn(size, device=CUDA)
    ours = FusedSGD(row, decay, momentum)
    ours.rate.fill_(rate)
    ours.bf16_copy = row.bfloat16() if low else None
    ours.ema_target = EmaTarget(target, target.bfloat16() if low else None, share, start)
    true, true_target, buffer = (
        row.double(),
        target.double(),
        torch.zeros(n, device=CUDA, dtype=torch.float64),
    )
    for _ in range(3):
        grad, piece = torch.randn(n, device=CUDA), torch.randn(30_000, device=CUDA).bfloat16()
        whole = torch.cat([grad[:55_000], piece.float(), grad[85_000:]]).double()
        ours.step(grad, {55_000: piece})
        buffer = momentum * buffer + whole + decay * true
        true = true - rate * buffer
        true_target = true_target + share * (true[start : start + size] - true_target)
    for mine, truth in ((row, true), (ours.buffer, buffer), (target, true_target)):
        assert (mine.double() - truth).norm() / truth.norm() < 1e-6
    if ours.bf16_copy is not None and ours.ema_target.bf16_copy is not None:
        assert torch.equal(ours.bf16_copy, row.bfloat16())
        assert torch.equal(ours.ema_target.bf16_copy, target.bfloat16())


def test_stem() -> None:
    from fedssl.core.kernels.stem import stem

    images = torch.rand(64, 3, 32, 32, device=CUDA)
    weight = (
        torch.randn(64, 3, 3, 3, device=CUDA)
        .contiguous(memory_format=torch.channels_last)
        .bfloat16()
    )
    weight.requires_grad_()
    dy = (
        torch.randn(64, 64, 32, 32, device=CUDA)
        .bfloat16()
        .contiguous(memory_format=torch.channels_last)
    )
    y = stem(images, weight)
    (grad,) = torch.autograd.grad(y, weight, dy)
    twin = weight.detach().double().requires_grad_()
    truth = torch.nn.functional.conv2d(images.bfloat16().double(), twin, padding=1)
    (expected,) = torch.autograd.grad(truth, twin, dy.double())
    assert (y.double() - truth).norm() / truth.norm() < 4e-3
    assert (grad.double() - expected).norm() / expected.norm() < 4e-3
