"""Distillation against loops and lightly; the centre step by step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fedssl.method import Batch
from fedssl.methods import DINO
from fedssl.methods.dino import Centre, Head, distillation_loss


def _outputs(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def _softmax(row: list[float], temperature: float) -> list[float]:
    powers = [math.exp(x / temperature) for x in row]
    return [power / sum(powers) for power in powers]


def _slow(student: Tensor, teacher: Tensor, centre: Tensor, tau_s: float, tau_t: float) -> float:
    losses = []
    for view in range(2):
        for b in range(student.shape[1]):
            expected = _softmax((teacher[1 - view, b] - centre).tolist(), tau_t)
            predicted = _softmax(student[view, b].tolist(), tau_s)
            losses.append(-sum(t * math.log(s) for t, s in zip(expected, predicted, strict=True)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("tau_s", "tau_t"), [(0.1, 0.04), (1.0, 0.5)])
def test_equals_loops(tau_s: float, tau_t: float) -> None:
    student = _outputs(2, 5, 4)
    teacher = _outputs(2, 5, 4, seed=2)
    centre = _outputs(4, seed=3)
    mine = distillation_loss(student, teacher, centre, tau_s, tau_t).item()
    assert mine == pytest.approx(_slow(student, teacher, centre, tau_s, tau_t), rel=1e-4)


def test_by_hand() -> None:
    """The outputs of a teacher at its centre are uniform over 4; a uniform student has a loss of
    log 4.
    """
    centre = torch.tensor([3.0, 1, 0, 2])
    loss = distillation_loss(torch.zeros(2, 3, 4), centre.expand(2, 3, 4), centre, 0.1, 0.04)
    assert loss.item() == pytest.approx(math.log(4))


def test_centre_moves_by_hand_numbers() -> None:
    """Outputs of mean (2, 4), m = 0.9: 0.1 of it, then 0.19 of it."""
    centre = Centre(2)
    outputs = torch.tensor([[[1.0, 3], [3, 5]], [[0, 4], [4, 4]]])
    for share in (0.1, 0.19):
        centre.move(outputs, 0.9)
        torch.testing.assert_close(centre.mean, share * torch.tensor([2.0, 4]))


def test_a_step_moves_teacher_and_centre(make, step, batch: Batch) -> None:
    method = make(DINO, momentum=0.5, centre_momentum=0.0)
    method.parameter_row(method.online).add_(2)
    before = method.parameter_row(("target",)).clone()
    out = method(batch)
    assert not out.keys.requires_grad
    expected = _slow(out.z, out.keys, torch.zeros(5), 0.1, 0.04)
    assert method.loss(out, {}).item() == pytest.approx(expected, rel=1e-4)
    out = step(method)
    torch.testing.assert_close(method.parameter_row(("target",)), before + 1)
    torch.testing.assert_close(method.state.tensors()["centre.mean"], out.keys.mean((0, 1)))
    method.init_local_parts(torch.Generator())
    assert (method.centre.mean == 0).all()


def test_outputs_are_cosines() -> None:
    """Lengths of the bottleneck and of the last layer's rows do not matter."""
    torch.manual_seed(0)
    head = Head(6, 8, 4, 7)
    h = torch.randn(3, 6)
    out = head(h)
    assert out.abs().max() <= 1 + 1e-6
    with torch.no_grad():
        head.last.weight.mul_(torch.linspace(0.5, 9, 7)[:, None])
    torch.testing.assert_close(head(h), out)


def test_no_operation_waits_for_the_device() -> None:
    with FakeTensorMode():  # has shapes and no values: reading one raises
        centre = Centre(4)
        centre.move(torch.empty(2, 6, 4), 0.9)
        assert (
            distillation_loss(
                torch.empty(2, 6, 4), torch.empty(2, 6, 4), centre.mean, 0.1, 0.04
            ).shape
            == ()
        )


@pytest.mark.oracle
def test_equals_lightly() -> None:
    loss = pytest.importorskip("lightly.loss")
    theirs = loss.DINOLoss(6)
    centre = Centre(6)
    for seed in range(3):  # lightly moves its centre after each loss
        student = _outputs(2, 8, 6, seed=seed)
        teacher = _outputs(2, 8, 6, seed=seed + 10)
        mine = distillation_loss(student, teacher, centre.mean, 0.1, 0.04)
        torch.testing.assert_close(mine, theirs(list(teacher), list(student)), rtol=1e-5, atol=1e-6)
        centre.move(teacher, 0.9)
    torch.testing.assert_close(centre.mean, theirs.center.flatten())
