"""BYOL's loss against loops and lightly; the switches of the ablations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedssl.method import Batch, Output
from fedssl.methods import BYOL


def _output() -> Output:
    p, keys = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(1)).unbind()
    return Output(p, p, p, keys)


def test_equals_the_distance_of_unit_vectors(make) -> None:
    """The paper's Eq. 2: ‖p̄ − t̄‖² of unit vectors, once for each view as the online one."""
    out, total = _output(), 0.0
    for i in range(5):
        for view in range(2):
            p, t = out.p[view, i], out.keys[1 - view, i]
            total += (p / p.norm() - t / t.norm()).square().sum().item()
    assert make(BYOL).loss(out, {}).item() == pytest.approx(total / 5, rel=1e-5)


@pytest.mark.oracle
def test_equals_lightly(make) -> None:
    criterion, out = pytest.importorskip("lightly.loss").NegativeCosineSimilarity(), _output()
    theirs = 4 + 2 * criterion(out.p[0], out.keys[1]) + 2 * criterion(out.p[1], out.keys[0])
    torch.testing.assert_close(make(BYOL).loss(out, {}), theirs, rtol=1e-5, atol=1e-6)


def _gradient(method: BYOL, batch: Batch) -> torch.Tensor:
    method.loss(method(batch), {}).backward()
    return torch.cat([parameter.grad.flatten() for parameter in method.backbone.parameters()])


def test_switches_change_gradients(make, batch: Batch) -> None:
    full = _gradient(make(BYOL), batch)
    no_ema = _gradient(make(BYOL, ema=False), batch)
    torch.testing.assert_close(full, no_ema, rtol=1e-4, atol=1e-6)  # a fresh target is the online network
    flowing = _gradient(make(BYOL, ema=False, stop_gradient=False), batch)
    bare = _gradient(make(BYOL, predictor=False), batch)
    for other in (flowing, bare):
        assert (full - other).norm() > 0.05 * full.norm()


def test_after_a_step_the_target_has_moved_by_its_share(make, step) -> None:
    method = make(BYOL, momentum=0.75)
    online, target = method.parameter_row(("backbone", "projector")), method.parameter_row(("target",))
    online.add_(1)
    expected = 0.75 * target + 0.25 * online
    step(method)
    torch.testing.assert_close(target, expected)
    assert make(BYOL, ema=False).target_momentum is None


def test_the_target_has_statistics_of_its_own(make, batch: Batch) -> None:
    method = make(BYOL)
    method.parameter_row(("target",)).mul_(0.5)
    before = method.target["backbone"].layers[0][1].running_mean.clone()
    with torch.no_grad():
        keys = method(batch).keys
    theirs, mine = (net.layers[0][1].running_mean for net in (method.target["backbone"], method.backbone))
    assert not torch.equal(theirs, before)
    assert not torch.allclose(theirs, mine)
    assert F.mse_loss(keys[0], keys[1]) > 0
