"""The symmetric cosine against loops and lightly; the switches of the ablations."""

from __future__ import annotations

import math

import pytest
import torch

from fedssl.method import Batch
from fedssl.methods import SimSiam
from fedssl.methods.simsiam import symmetric_cosine


def _cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def test_equals_the_sum_over_pairs() -> None:
    p, z = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(1)).unbind()
    rows_p = p.tolist()
    rows_z = z.tolist()
    slow = [
        -0.5 * _cosine(rows_p[0][i], rows_z[1][i]) - 0.5 * _cosine(rows_p[1][i], rows_z[0][i])
        for i in range(5)
    ]
    assert symmetric_cosine(p, z).item() == pytest.approx(sum(slow) / 5, rel=1e-5)


def test_each_view_is_compared_with_the_other() -> None:
    views = torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]]])
    assert symmetric_cosine(views, views).item() == pytest.approx(0)
    assert symmetric_cosine(views, views.flip(0)).item() == pytest.approx(-1)


def _gradient(method: SimSiam, batch: Batch) -> torch.Tensor:
    method.loss(method(batch), {}).backward()
    return torch.cat([parameter.grad.flatten() for parameter in method.backbone.parameters()])


def test_stopping_the_gradient_changes_it_and_not_the_loss(make, batch: Batch) -> None:
    stopped = make(SimSiam)
    flowing = make(SimSiam, stop_gradient=False)
    torch.testing.assert_close(stopped.loss(stopped(batch), {}), flowing.loss(flowing(batch), {}))
    a = _gradient(make(SimSiam), batch)
    b = _gradient(make(SimSiam, stop_gradient=False), batch)
    assert (a - b).norm() > 0.05 * a.norm()


def test_without_predictor_both_branches_are_alike(make, batch: Batch) -> None:
    """Without a predictor p = z: a gradient into both branches is exactly twice that into one."""
    one = _gradient(make(SimSiam, predictor=False), batch)
    both = _gradient(make(SimSiam, predictor=False, stop_gradient=False), batch)
    torch.testing.assert_close(both, 2 * one, rtol=1e-4, atol=1e-6)
    assert (one - _gradient(make(SimSiam), batch)).norm() > 0.05 * one.norm()


@pytest.mark.oracle
def test_equals_lightly() -> None:
    criterion = pytest.importorskip("lightly.loss").NegativeCosineSimilarity()
    p, z = torch.randn(2, 2, 16, 8, generator=torch.Generator().manual_seed(2)).unbind()
    theirs = 0.5 * criterion(p[0], z[1]) + 0.5 * criterion(p[1], z[0])
    torch.testing.assert_close(symmetric_cosine(p, z), theirs, rtol=1e-5, atol=1e-6)
