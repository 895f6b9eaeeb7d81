"""BYOL's loss against loops and lightly; the switches of the ablations."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F

from fedssl.method import Batch, Constants, Method, Output
from fedssl.methods import BYOL
from fedssl.training.trainer import Trainer, TrainingTask, TrainSettings


def _output() -> Output:
    p, keys = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(1)).unbind()
    return Output(p, p, p, keys)


def test_equals_the_distance_of_unit_vectors(make) -> None:
    """The paper's Eq. 2: ‖p̄ − t̄‖² of unit vectors, once for each view as the online one."""
    out = _output()
    total = 0.0
    for i in range(5):
        for view in range(2):
            p = out.p[view, i]
            t = out.keys[1 - view, i]
            total += (p / p.norm() - t / t.norm()).square().sum().item()
    assert make(BYOL).loss(out, {}).item() == pytest.approx(total / 5, rel=1e-5)


@pytest.mark.oracle
def test_equals_lightly(make) -> None:
    criterion = pytest.importorskip("lightly.loss").NegativeCosineSimilarity()
    out = _output()
    theirs = 4 + 2 * criterion(out.p[0], out.keys[1]) + 2 * criterion(out.p[1], out.keys[0])
    torch.testing.assert_close(make(BYOL).loss(out, {}), theirs, rtol=1e-5, atol=1e-6)


def _gradient(method: BYOL, batch: Batch) -> torch.Tensor:
    method.loss(method(batch), {}).backward()
    return torch.cat([parameter.grad.flatten() for parameter in method.backbone.parameters()])


def test_without_a_predictor_gradients_differ(make, batch: Batch) -> None:
    full = _gradient(make(BYOL), batch)
    bare = _gradient(make(BYOL, predictor=False), batch)
    assert (full - bare).norm() > 0.05 * full.norm()


def test_gradients_that_are_not_stopped_reach_the_target_only(make, batch: Batch) -> None:
    """The loss is symmetric in p and t. Without a predictor p is a projection, and a fresh target
    is a copy of the online network: then both have one gradient.
    """
    stopped, flowing = (make(BYOL, predictor=False, stop_gradient=on) for on in (True, False))
    online = _gradient(flowing, batch)
    assert torch.equal(_gradient(stopped, batch), online)
    assert all(parameter.grad is None for parameter in stopped.target.parameters())
    theirs = torch.cat(
        [parameter.grad.flatten() for parameter in flowing.target["backbone"].parameters()]
    )
    torch.testing.assert_close(theirs, online, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ema", [True, False])
@pytest.mark.parametrize("stop_gradient", [True, False])
def test_the_target_moves_by_gradient_and_by_averaging(
    ema: bool, stop_gradient: bool, make, batch: Batch
) -> None:
    """A step of plain SGD at rate 0.5: without stop-gradient target ← target − 0.5·∇, then with the
    moving average target ← (target + online)/2.
    """
    method = make(BYOL, ema=ema, stop_gradient=stop_gradient, momentum=0.5)
    trainer = Trainer(
        method, TrainSettings(momentum=0, weight_decay=0, mode="eager", precision="fp32")
    )
    online = method.parameter_row(("backbone", "projector"))
    target = method.parameter_row(("target",))
    assert trainer.step.optimizer.row.numel() == len(method.parameter_row(method.online)) + len(
        target
    ) * (not stop_gradient)
    images = torch.randint(
        256, (6, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    task = TrainingTask(images, None, torch.Generator().manual_seed(2), 0.5, 0.0, threading.Event())
    seen: list[torch.Tensor] = []

    def objective(method: Method, batch: Batch, out: Output, constants: Constants) -> torch.Tensor:
        loss = method.loss(out, constants)
        inputs = list(method.target.parameters())
        grads = (
            torch.autograd.grad(loss, inputs, retain_graph=True)
            if inputs[0].requires_grad
            else inputs
        )
        moved = [
            p.detach() - 0.5 * g * inputs[0].requires_grad
            for p, g in zip(inputs, grads, strict=True)
        ]
        seen.extend(moved)
        return loss

    trainer.fit(task, objective, {})
    for i, (name, parameter) in enumerate(method.target.named_parameters()):
        expected = (seen[i] + method.get_parameter(name)) / 2 if ema else seen[i]
        torch.testing.assert_close(parameter, expected, msg=name)
    assert not torch.equal(online, target)


def test_after_a_step_the_target_has_moved_by_its_share(make, step) -> None:
    method = make(BYOL, momentum=0.75)
    online = method.parameter_row(("backbone", "projector"))
    target = method.parameter_row(("target",))
    online.add_(1)
    expected = 0.75 * target + 0.25 * online
    step(method)
    torch.testing.assert_close(target, expected)
    assert make(BYOL, ema=False).target_momentum is None


def test_the_target_has_separate_statistics(make, batch: Batch) -> None:
    method = make(BYOL)
    method.parameter_row(("target",)).mul_(0.5)
    before = method.target["backbone"].layers[0][1].running_mean.clone()
    with torch.no_grad():
        keys = method(batch).keys
    theirs, mine = (
        net.layers[0][1].running_mean for net in (method.target["backbone"], method.backbone)
    )
    assert not torch.equal(theirs, before)
    assert not torch.allclose(theirs, mine)
    assert F.mse_loss(keys[0], keys[1]) > 0
