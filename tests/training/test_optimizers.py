"""Optimizers on one row against torch.optim on the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from factories import make_trainer
from torch import Tensor

from fedssl.training.optimizer_choice import make_optimizer
from fedssl.training.optimizers import SGD, Adam, EmaTarget, FusedSGD, Optimizer
from fedssl.training.settings import TrainSettings

OURS: dict[str, Callable[[Tensor, float | Tensor], Optimizer]] = {
    "sgd": lambda row, decay: SGD(row, decay, momentum=0.9),
    "plain sgd": lambda row, decay: SGD(row, decay, momentum=0.0),
    "adam": lambda row, decay: Adam(row, decay, decoupled=False),
    "adamw": lambda row, decay: Adam(row, decay, decoupled=True),
}
THEIRS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9),
    "plain sgd": lambda groups: torch.optim.SGD(groups),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def _numbers(n: int, seed: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("decay", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("name", OURS)
def test_twenty_steps_equal_torch(name: str, decay: float) -> None:
    """The learning rate changes between steps, as from round to round."""
    row = _numbers(50, 0)
    theirs = row.clone().requires_grad_()
    ours = OURS[name](row, decay)
    oracle = THEIRS[name]([{"params": [theirs], "weight_decay": decay}])
    for step in range(20):
        lr = 0.05 / (1 + step)
        ours.lr.fill_(lr)
        oracle.param_groups[0]["lr"] = lr
        theirs.grad = _numbers(50, 1 + step)
        ours.step(_numbers(50, 1 + step))
        oracle.step()
        torch.testing.assert_close(row, theirs.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", OURS)
def test_a_decay_for_each_element(name: str) -> None:
    decay = torch.tensor([0.2] * 30 + [0.0] * 20)
    row = _numbers(50, 0)
    heavy, light = (part.clone().requires_grad_() for part in (row[:30], row[30:]))
    ours = OURS[name](row, decay)
    ours.lr.fill_(0.01)
    groups = [{"params": [heavy], "weight_decay": 0.2}, {"params": [light], "weight_decay": 0.0}]
    oracle = THEIRS[name]([{**group, "lr": 0.01} for group in groups])
    for step in range(20):
        grad = _numbers(50, 1 + step)
        heavy.grad = grad[:30].clone()
        light.grad = grad[30:].clone()
        ours.step(grad)
        oracle.step()
    torch.testing.assert_close(row, torch.cat([heavy, light]).detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", OURS)
def test_a_reset_clears_all_state(name: str) -> None:
    used = _numbers(9, 0)
    new = _numbers(9, 0)
    veteran = OURS[name](used, 0.1)
    novice = OURS[name](new, 0.1)
    for optimizer in (veteran, novice):
        optimizer.lr.fill_(0.1)
    addresses = [tensor.data_ptr() for tensor in veteran.tensors()]
    veteran.step(torch.full((9,), float("nan")))
    veteran.reset()
    assert [tensor.data_ptr() for tensor in veteran.tensors()] == addresses
    used.copy_(new)
    for step in range(3):
        veteran.step(_numbers(9, step))
        novice.step(_numbers(9, step))
    assert torch.equal(used, new)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_decay_by_role(name: str) -> None:
    """With a gradient of 0, only decay changes parameters: matrices and kernels always, biases and
    norms if `decay_norms` is set.
    """
    for norms in (True, False):
        method = make_trainer().method
        settings = TrainSettings(optimizer=name, weight_decay=0.5, decay_norms=norms, momentum=0)
        row = method.parameter_row(method.online)
        row.fill_(1)
        optimizer = make_optimizer(settings, method, row)
        optimizer.lr.fill_(0.1)
        optimizer.step(torch.zeros_like(row))
        for key, parameter in method.named_parameters():
            if parameter.requires_grad:
                moved = bool((parameter != 1).all())
                assert moved == (norms or parameter.ndim > 1), key
                assert moved or bool((parameter == 1).all()), key


def test_settings_choose_the_optimizer() -> None:
    method = make_trainer().method
    row = torch.zeros(3)
    made = [
        make_optimizer(TrainSettings(optimizer=name), method, row)
        for name in ("sgd", "adam", "adamw")
    ]
    assert [type(optimizer) for optimizer in made] == [SGD, Adam, Adam]
    assert [getattr(optimizer, "decoupled", None) for optimizer in made] == [None, False, True]
    assert all(optimizer.decay == TrainSettings().weight_decay for optimizer in made)


@pytest.mark.parametrize("apart", [{}, {2: 3}, {0: 10}, {1: 8}, {4: 1, 5: 2}, {0: 3, 3: 7}])
@pytest.mark.parametrize(("start", "end"), [(0, 10), (0, 4), (6, 10), (3, 7), (9, 10)])
@pytest.mark.parametrize("low", [True, False])
def test_fused_sgd_updates_the_target_of_a_slice(
    start: int, end: int, low: bool, apart: dict[int, int], plain_kernel: list[torch.dtype]
) -> None:
    """The target follows any slice of the row, also if separate gradient tensors (place: length)
    begin and end anywhere.
    """
    row = torch.linspace(-1, 1, 10)
    target = torch.full((end - start,), 3.0)
    plain = SGD(row.clone(), 0.1, 0.9)
    ours = FusedSGD(row.clone(), 0.1, 0.9)
    ours.ema_target = EmaTarget(target.clone(), target.bfloat16() if low else None, 0.25, start)
    for step in range(3):
        grad = torch.linspace(1, 2 + step, 10)
        pieces = {at: grad[at : at + n].clone() for at, n in apart.items()}
        for optimizer in (plain, ours):
            optimizer.lr.fill_(0.1)
        plain.step(grad.clone())
        for at, n in apart.items():
            grad[at : at + n] = torch.nan
        ours.step(grad, pieces)
        target.lerp_(plain.row[start:end], 0.25)
        torch.testing.assert_close(ours.row, plain.row)
        torch.testing.assert_close(ours.ema_target.row, target)
        if ours.ema_target.bf16_copy is not None:
            assert torch.equal(ours.ema_target.bf16_copy, ours.ema_target.row.bfloat16())
