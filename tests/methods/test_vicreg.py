"""VICReg's terms against loops, numbers worked out by hand, and lightly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedssl.method import Output
from fedssl.methods import VICReg
from fedssl.methods.vicreg import covariance, variance


def _views(n: int = 6, k: int = 4, spread: float = 0.7) -> Tensor:
    """Standard deviations on both sides of the hinge."""
    z = torch.randn(2, n, k, generator=torch.Generator().manual_seed(1))
    return z * torch.linspace(0.5, 2, k) * spread + 1


def _covariances(rows: list[list[float]]) -> list[list[float]]:
    n = len(rows)
    k = len(rows[0])
    mean = [sum(row[i] for row in rows) / n for i in range(k)]
    return [
        [sum((row[i] - mean[i]) * (row[j] - mean[j]) for row in rows) / (n - 1) for j in range(k)]
        for i in range(k)
    ]


def _slow(z: Tensor, lam: float, mu: float, nu: float) -> float:
    a, b = z.tolist()
    n = len(a)
    k = len(a[0])
    total = lam * sum((a[r][i] - b[r][i]) ** 2 for r in range(n) for i in range(k)) / (n * k)
    for c in (_covariances(a), _covariances(b)):
        total += mu * sum(max(0.0, 1 - (c[i][i] + 1e-4) ** 0.5) for i in range(k)) / k / 2
        total += nu * sum(c[i][j] ** 2 for i in range(k) for j in range(k) if i != j) / k
    return total


@pytest.mark.parametrize("weights", [(25, 25, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_equals_the_sums(weights: tuple[float, float, float], make) -> None:
    z = _views()
    method = make(VICReg, **dict(zip(("lam", "mu", "nu"), weights, strict=True)))
    assert method.loss(Output(z, z, z), {}).item() == pytest.approx(_slow(z, *weights), rel=1e-4)


def test_by_hand() -> None:
    """Rows (1, 1), (−1, −1): both variances and the covariance are 2. So the hinge is 0, and the
    covariance term of each view is (2² + 2²)/2 = 4. For a tenth of z, variance and covariance are
    0.02, the hinge is 1 − √0.0201, and the covariance term is 0.0004 a view.
    """
    z = torch.tensor([[1.0, 1.0], [-1.0, -1.0]]).expand(2, 2, 2)
    assert variance(z).item() == 0
    assert covariance(z).item() == pytest.approx(8)
    assert variance(z / 10).item() == pytest.approx(1 - 0.0201**0.5)
    assert covariance(z / 10).item() == pytest.approx(0.0008)


def test_a_collapsed_batch_has_a_finite_gradient(make) -> None:
    z = torch.ones(2, 5, 4, requires_grad=True)
    loss = make(VICReg).loss(Output(z, z, z), {})
    assert loss.item() == pytest.approx(25 * 0.99)
    loss.backward()
    assert z.grad.isfinite().all()


@pytest.mark.oracle
def test_equals_lightly(make) -> None:
    criterion = pytest.importorskip("lightly.loss").VICRegLoss()
    z = _views(16, 8)
    torch.testing.assert_close(
        make(VICReg).loss(Output(z, z, z), {}), criterion(*z), rtol=1e-4, atol=1e-5
    )
