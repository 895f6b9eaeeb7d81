"""The distribution of the noise. It has no seed: bounds are exceeded about once in 10⁹ runs."""

from __future__ import annotations

import math
import os

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
    """Neither neighbours nor the two numbers made from one pair of uniform ones are correlated."""
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


def test_the_ends_of_the_range_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """All bits 0: u = 2⁻¹²⁸, √(−2 ln u) = 13.3209, angle 0. All bits 1: u = ½, √(2 ln 2), 2π."""
    monkeypatch.setattr("os.urandom", lambda size: b"\0" * size)
    assert secret_gaussians(2) == pytest.approx([13.3209, 0.0], abs=1e-4)
    monkeypatch.setattr("os.urandom", lambda size: b"\xff" * size)
    assert secret_gaussians(2) == pytest.approx([1.1774, 0.0], abs=1e-4)


@pytest.mark.parametrize("near_one", [False, True])
def test_radii_have_no_gaps(near_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same first 64 bits, u or 1 − u is uniform from 5·2⁻⁶⁴ to 6·2⁻⁶⁴, as −2 ln u = r².

    With multiples of 2⁻⁶⁴ alone, the radii 9.25 and 9.23 would be neighbours, 8·10⁷ steps of the
    grid apart: an attacker with all other clients' updates could infer the sum that the noise was
    added to. A gap of 3% between 1,000 uniform numbers has a probability of 1000·exp(−30) = 10⁻¹⁰.
    """
    first = np.uint64(5 + near_one * 2**63)
    streams = iter([np.full(1000, first).tobytes()])
    draw = os.urandom
    monkeypatch.setattr("os.urandom", lambda size: next(streams, None) or draw(size))
    values = secret_gaussians(2000)
    half_squares = np.square(values).reshape(2, 1000).sum(axis=0) / 2
    end = -np.expm1(-half_squares) if near_one else np.exp(-half_squares)
    places = np.sort(end * 2.0**64 - 5)
    assert np.diff(places, prepend=0, append=1).min() > -1e-6
    assert np.diff(places, prepend=0, append=1).max() < 0.03
