"""The cross-correlation loss against loops, numbers worked out by hand, and lightly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedssl.method import Batch
from fedssl.methods import Barlow
from fedssl.methods.barlow import redundancy_loss


def _views(n: int = 6, k: int = 4) -> Tensor:
    return torch.randn(2, n, k, generator=torch.Generator().manual_seed(1)) * 3 + 1


def _slow(z: Tensor, lam: float) -> float:
    (a, b) = z.tolist()
    total = 0.0
    n = len(a)
    k = len(a[0])

    def column(rows: list[list[float]], i: int) -> list[float]:
        values = [row[i] for row in rows]
        mean = sum(values) / n
        std = (sum((v - mean) ** 2 for v in values) / n + 1e-5) ** 0.5
        return [(v - mean) / std for v in values]

    for i in range(k):
        for j in range(k):
            c = sum(x * y for x, y in zip(column(a, i), column(b, j), strict=True)) / n
            total += (1 - c) ** 2 if i == j else lam * c**2
    return total


@pytest.mark.parametrize("lam", [0.0, 0.005, 1.0])
def test_equals_the_sum_over_pairs_of_entries(lam: float) -> None:
    assert redundancy_loss(_views(), lam).item() == pytest.approx(_slow(_views(), lam), rel=1e-4)


def test_by_hand() -> None:
    """Columns (1, 1, −1, −1) and (1, −1, 1, −1) are uncorrelated: equal views have a loss of 0. If
    the columns of the second view are exchanged, C is 0 on the diagonal and 1 next to it: 2 + 2λ.
    Two equal columns: C = 1 everywhere, 2λ.
    """
    apart = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    alike = apart[:, :1].expand(4, 2)
    for first, second, expected in (
        (apart, apart, 0.0),
        (apart, apart.flip(1), 3.0),
        (alike, alike, 1.0),
    ):
        loss = redundancy_loss(torch.stack([first, second]), 0.5).item()
        assert loss == pytest.approx(expected, abs=1e-3)


def test_a_constant_entry_is_finite() -> None:
    z = _views().index_fill(2, torch.tensor([1]), 2.0).requires_grad_()
    redundancy_loss(z, 0.005).backward()
    assert z.grad.isfinite().all()


def test_the_loss_is_scaled(make, batch: Batch) -> None:
    out = make(Barlow)(batch)
    plain = make(Barlow, scale=1.0).loss(out, {})
    scaled = make(Barlow, scale=0.25).loss(out, {})
    torch.testing.assert_close(scaled, plain / 4)
    torch.testing.assert_close(plain, redundancy_loss(out.z, 0.005))


@pytest.mark.oracle
def test_equals_lightly() -> None:
    criterion = pytest.importorskip("lightly.loss").BarlowTwinsLoss(lambda_param=0.01)
    z = _views(16, 8)
    torch.testing.assert_close(redundancy_loss(z, 0.01), criterion(*z), rtol=1e-4, atol=1e-5)
