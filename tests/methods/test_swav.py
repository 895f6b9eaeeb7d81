"""Sinkhorn and the swapped prediction against loops and lightly; prototypes of unit length."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fedssl.method import Batch
from fedssl.methods import SwAV
from fedssl.methods.swav import sinkhorn, swapped_prediction_loss


def _scores(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def _slow_sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> list[list[float]]:
    q = [[math.exp(score / epsilon) for score in row] for row in scores.tolist()]
    for _ in range(iterations):
        for k in range(len(q[0])):
            total = sum(row[k] for row in q)
            for row in q:
                row[k] /= total
        q = [[value / sum(row) for value in row] for row in q]
    return q


def _slow_loss(scores: Tensor, codes: Tensor, temperature: float) -> float:
    losses = []
    for g in range(len(codes)):
        for v in range(len(scores)):
            for b in range(scores.shape[1] if g != v else 0):
                p = (scores[v, b] / temperature).softmax(0)
                losses.append(
                    -sum(
                        q * math.log(x)
                        for q, x in zip(codes[g, b].tolist(), p.tolist(), strict=True)
                    )
                )
    return sum(losses) / len(losses)


@pytest.mark.parametrize("epsilon", [0.05, 0.5])
def test_sinkhorn_equals_loops(epsilon: float) -> None:
    scores = _scores(2, 6, 4)
    for view in range(2):
        expected = torch.tensor(_slow_sinkhorn(scores[view], epsilon, 3))
        torch.testing.assert_close(
            sinkhorn(scores, epsilon, 3)[view], expected, rtol=1e-4, atol=1e-6
        )


def test_codes_spread_over_prototypes() -> None:
    """Each image's code is a distribution; in the limit each of 4 prototypes takes 8/4 images."""
    codes = sinkhorn(_scores(8, 4), 0.5, 200)
    torch.testing.assert_close(codes.sum(1), torch.ones(8))
    torch.testing.assert_close(codes.sum(0), torch.full((4,), 2.0), rtol=1e-3, atol=1e-3)


def test_sinkhorn_by_hand() -> None:
    """All images have the same scores: codes are uniform, whatever the scores are."""
    scores = torch.tensor([0.9, 0.1, -0.5]).expand(4, 3)
    torch.testing.assert_close(sinkhorn(scores, 0.05, 1), torch.full((4, 3), 1 / 3))


@pytest.mark.parametrize("small", [0, 3])
def test_loss_equals_the_mean_over_pairs(small: int) -> None:
    scores = _scores(2 + small, 5, 4)
    codes = sinkhorn(scores[:2], 0.05, 3)
    mine = swapped_prediction_loss(scores, codes, 0.1).item()
    assert mine == pytest.approx(_slow_loss(scores, codes, 0.1), rel=1e-5)


def test_a_code_is_predicted_from_the_other_view() -> None:
    """Codes certain of prototypes 0 and 1; views certain of 1 and 0: each predicts the other's,
    −log(1/(1 + e⁻²)).
    """
    codes = torch.eye(2)[:, None]  # view 0: prototype 0, view 1: prototype 1
    scores = torch.tensor([[[-1.0, 1]], [[1.0, -1]]])
    assert swapped_prediction_loss(scores, codes, 1.0).item() == pytest.approx(
        math.log(1 + math.exp(-2)), rel=1e-5
    )


def test_codes_take_no_gradient(make, batch: Batch) -> None:
    method = make(SwAV)
    out = method(batch)
    scores = out.p.detach().requires_grad_()
    method.loss(out._replace(p=scores), {}).backward()
    twin = out.p.detach().requires_grad_()
    swapped_prediction_loss(twin, sinkhorn(out.p.detach(), 0.05, 3), 0.1).backward()
    torch.testing.assert_close(scores.grad, twin.grad)


def test_prototypes_are_of_unit_length(make, batch: Batch) -> None:
    """From the start, after a step, and in an epoch that begins with the mean of several
    clients'.
    """
    method = make(SwAV)
    weight = method.prototypes.weight
    ones = torch.ones(method.settings.prototypes)
    torch.testing.assert_close(weight.norm(dim=1), ones)
    for change in (
        lambda: method.after_step(method(batch)),
        lambda: method.before_epoch(pytest.fail),
    ):
        with torch.no_grad():
            weight.mul_(0.5)
        assert dict(change() or {}) == {}
        torch.testing.assert_close(weight.norm(dim=1), ones)
    assert torch.equal(method.state.tensors()["prototypes.weight"], weight)
    assert method(batch).p.abs().max() <= 1 + 1e-5  # cosines


def test_small_crops(make, batch: Batch) -> None:
    method = make(SwAV, small=3)
    large, small = method.views
    assert (large.count, large.size, small.count, small.size) == (2, 8, 3, 4)
    assert small.augment.crop == (0.05, 0.14)
    assert small.augment.model_copy(update={"crop": large.augment.crop}) == large.augment
    views = torch.randn(3, 6, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    out = method(batch._replace(views=(*batch.views, views)))
    assert out.p.shape == (5, 6, 5)
    expected = _slow_loss(out.p, sinkhorn(out.p[:2].detach(), 0.05, 3), 0.1)
    assert method.loss(out, {}).item() == pytest.approx(expected, rel=1e-4)


def test_no_operation_waits_for_the_device() -> None:
    with FakeTensorMode():  # has shapes and no values: reading one raises
        scores = torch.empty(3, 6, 4)
        assert swapped_prediction_loss(scores, sinkhorn(scores[:2], 0.05, 3), 0.1).shape == ()


@pytest.mark.oracle
@pytest.mark.parametrize("small", [0, 2])
def test_equals_lightly(small: int) -> None:
    loss = pytest.importorskip("lightly.loss")
    scores = _scores(2 + small, 8, 6)
    theirs = loss.SwaVLoss()(list(scores[:2]), list(scores[2:]))
    mine = swapped_prediction_loss(scores, sinkhorn(scores[:2], 0.05, 3), 0.1)
    torch.testing.assert_close(mine, theirs.squeeze(), rtol=1e-5, atol=1e-6)
