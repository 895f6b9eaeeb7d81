"""NT-Xent against loops and against lightly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fedssl.method import Batch
from fedssl.methods.simclr import SimCLRSettings, nt_xent
from fedssl.nets import CNN


def _slow(z: Tensor, temperature: float) -> float:
    rows = [
        [x / math.sqrt(sum(y * y for y in row)) for x in row] for row in z.flatten(0, 1).tolist()
    ]
    n = len(rows) // 2

    def similarity(i: int, j: int) -> float:
        return sum(a * b for a, b in zip(rows[i], rows[j], strict=True)) / temperature

    losses = []
    for i in range(2 * n):
        partner = (i + n) % (2 * n)
        others = sum(math.exp(similarity(i, k)) for k in range(2 * n) if k != i)
        losses.append(-math.log(math.exp(similarity(i, partner)) / others))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
@pytest.mark.parametrize("n", [1, 5])
def test_equals_the_sum_over_pairs(n: int, temperature: float) -> None:
    z = torch.randn(2, n, 4, generator=torch.Generator().manual_seed(1))
    assert nt_xent(z, temperature).item() == pytest.approx(
        _slow(z, temperature), rel=1e-5, abs=1e-6
    )


def test_by_hand() -> None:
    """Two images at right angles, both views alike, t = 1: each view sees e¹ (partner), e⁰, e⁰."""
    z = torch.eye(2).expand(2, 2, 2)
    assert nt_xent(z, 1.0).item() == pytest.approx(math.log(math.e + 2) - 1)


def test_length_of_projections_is_ignored() -> None:
    z = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    scaled = z * torch.tensor([0.1, 5.0, 40.0])[:, None]
    torch.testing.assert_close(nt_xent(scaled, 0.5), nt_xent(z, 0.5))


def test_gradient_is_finite_though_a_view_is_masked_out_against_itself() -> None:
    z = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
    nt_xent(z, 0.07).backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()
    assert z.grad.abs().max() > 0


def test_no_operation_waits_for_the_device() -> None:
    with FakeTensorMode():  # has shapes and no values: reading one raises
        assert nt_xent(torch.empty(2, 8, 4), 0.07).shape == ()


@pytest.mark.parametrize("batch_norm", ["shared", "per-view"])
def test_views_share_their_statistics_or_not(batch_norm: str) -> None:
    """As one pass over 2B images, or as two passes over B; running statistics move likewise.

    The second view is darker, so that the statistics of both differ.
    """
    views = torch.rand(2, 6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    views[1] *= 0.1
    settings = SimCLRSettings(hidden=8, dim=4, batch_norm=batch_norm)
    torch.manual_seed(0)
    method = settings.build(CNN(), 8)
    torch.manual_seed(0)
    plain = settings.build(CNN(), 8)
    images = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)
    batch = Batch(
        torch.arange(6), images, (views,), labels=None, draws={}, progress=torch.zeros(())
    )
    out = method(batch)
    passes = [views.flatten(0, 1)] if batch_norm == "shared" else list(views)
    expected = torch.cat([plain.projector(plain.backbone(images)) for images in passes])
    torch.testing.assert_close(out.z.flatten(0, 1), expected)
    torch.testing.assert_close(
        method.backbone.state_dict()["layers.0.1.running_mean"],
        plain.backbone.state_dict()["layers.0.1.running_mean"],
    )


@pytest.mark.oracle
@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_equals_lightly(temperature: float) -> None:
    loss = pytest.importorskip("lightly.loss")
    z = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(2), requires_grad=True)
    theirs = loss.NTXentLoss(temperature=temperature)(z[0], z[1])
    mine = nt_xent(z, temperature)
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        *(torch.autograd.grad(x, z)[0] for x in (mine, theirs)), rtol=1e-4, atol=1e-6
    )
