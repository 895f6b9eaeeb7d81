"""The distribution of the noise. It cannot be seeded: bounds are exceeded about once in 10⁹ runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedssl.engine.privacy.gaussian import secret_gaussians

pytestmark = pytest.mark.rows("C5")

N = 400_000
# 2·exp(−2·t²) = 10⁻⁹ (Kolmogorov–Smirnov); six standard errors of a mean are as rare.
KOLMOGOROV = 3.28


def test_the_noise_is_gaussian() -> None:
    """sup |F_n − Φ| · √n stays below the bound; a standard deviation 2% off would exceed it."""
    values = np.sort(secret_gaussians(N))
    cdf = 0.5 * np.array([math.erfc(-x / math.sqrt(2)) for x in values])
    above = np.arange(1, N + 1) / N - cdf
    below = cdf - np.arange(N) / N
    assert max(above.max(), below.max()) * math.sqrt(N) < KOLMOGOROV


def test_moments() -> None:
    """The moments 1 to 4 are 0, 1, 0, 3, with variances 1/n, 2/n, 15/n, 96/n."""
    values = secret_gaussians(N)
    for power, expected, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs((values**power).mean() - expected) < 6 * math.sqrt(variance / N)


def test_tails() -> None:
    """About 25 of 400,000 are beyond 4 deviations (P = 6.3·10⁻⁵), and none beyond 9.5."""
    values = np.abs(secret_gaussians(N))
    expected = N * math.erfc(4 / math.sqrt(2))
    assert abs((values > 4).sum() - expected) < 6 * math.sqrt(expected)
    assert values.max() < 9.5


@pytest.mark.parametrize("shift", [1, N // 2])
def test_numbers_are_independent(shift: int) -> None:
    """Neighbours, and the two numbers of one pair of uniform ones."""
    values = secret_gaussians(N)
    one = values[:-shift]
    other = values[shift:]
    for f in (np.asarray, np.abs, np.square):
        correlation = np.corrcoef(f(one), f(other))[0, 1]
        assert abs(correlation) < 6 / math.sqrt(len(one))


def test_two_calls_are_independent() -> None:
    correlation = np.corrcoef(secret_gaussians(N), secret_gaussians(N))[0, 1]
    assert abs(correlation) < 6 / math.sqrt(N)


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_any_count(count: int) -> None:
    assert secret_gaussians(count).shape == (count,)


def test_the_smallest_uniform_numbers_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """All bits 0: u = 2⁻⁶⁴, √(−2 ln u) = 9.4193, angle 2π·2⁻⁶⁴; all bits 1: u = 1, radius 0."""
    monkeypatch.setattr("os.urandom", lambda size: b"\0" * size)
    assert secret_gaussians(2) == pytest.approx([9.4193, 0.0], abs=1e-4)
    monkeypatch.setattr("os.urandom", lambda size: b"\xff" * size)
    assert secret_gaussians(2) == pytest.approx([0.0, 0.0])
