"""Representation metrics by hand and against loops."""

from __future__ import annotations

import math

import pytest
import torch

from fedssl.training.representation_metrics import alignment, effective_rank, spread, uniformity


def test_spread_against_a_loop() -> None:
    z = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    rows = [
        [x / math.sqrt(sum(y * y for y in row)) for x in row] for row in z.flatten(0, 1).tolist()
    ]
    deviations = []
    for column in zip(*rows, strict=True):
        mean = sum(column) / 12
        deviations.append(math.sqrt(sum((x - mean) ** 2 for x in column) / 11))
    assert spread(z) == pytest.approx(math.sqrt(4) * sum(deviations) / 4, rel=1e-5)


def test_spread_of_the_extremes() -> None:
    assert spread(torch.ones(2, 50, 8)) == pytest.approx(0, abs=1e-6)
    assert spread(
        torch.randn(2, 500, 64, generator=torch.Generator().manual_seed(0))
    ) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("shape", [(2, 10, 4), (2, 3, 20)])
def test_effective_rank_against_singular_values(shape: tuple[int, ...]) -> None:
    h = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(h.flatten(0, 1).double()).tolist()
    shares = [value / sum(values) for value in values]
    expected = math.exp(-sum(p * math.log(p) for p in shares))
    assert effective_rank(h) == pytest.approx(expected, rel=1e-5)


def test_alignment_by_hand() -> None:
    """Three views of one image at 0°, 90° and 180°: squared distances 2, 2 and 4, whatever their
    lengths; of another image all the same: 0. Mean (8/3 + 0) / 2.
    """
    one = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-3.0, 0.0]])
    assert alignment(torch.stack([one, torch.ones(3, 2)], 1)) == pytest.approx(4 / 3)
    assert alignment(torch.ones(1, 5, 2)) is None


def test_uniformity_against_a_loop() -> None:
    h = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
    unit = h / h.norm(dim=-1, keepdim=True)
    found = [
        math.exp(-2 * (unit[v, i] - unit[v, j]).square().sum().item())
        for v in range(2) for i in range(6) for j in range(6) if i != j
    ]  # fmt: skip
    assert uniformity(h) == pytest.approx(math.log(sum(found) / len(found)), rel=1e-5)
    assert uniformity(torch.ones(2, 4, 3)) == pytest.approx(0)  # all in one place
    assert uniformity(torch.ones(2, 1, 3)) is None


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_effective_rank_of_equal_directions(rank: int) -> None:
    h = torch.zeros(2, 8, 9)
    for i in range(rank):
        h[0, i, i] = 2.5
    assert effective_rank(h) == pytest.approx(rank, rel=1e-6)


def test_a_constant_network_has_metrics_too() -> None:
    assert spread(torch.zeros(2, 4, 3)) == 0
    assert effective_rank(torch.zeros(2, 4, 3)) == 1
