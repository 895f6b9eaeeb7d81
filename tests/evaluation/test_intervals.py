"""Intervals against published examples, and their coverage in simulated test sets."""

from __future__ import annotations

import math

import pytest
import torch

from fedssl.evaluation.intervals import accuracy_interval, difference_interval


def _correct(right: int, n: int) -> torch.Tensor:
    return torch.cat([torch.ones(right), torch.zeros(n - right)])


def test_an_accuracy_has_wilsons_interval() -> None:
    """81 of 263 in Newcombe, Statistics in Medicine 17, 1998, Table I: 0.2553 to 0.3662."""
    interval = accuracy_interval(_correct(81, 263))
    assert interval.estimate == pytest.approx(100 * 81 / 263)
    assert interval.low == pytest.approx(25.53, abs=0.005)
    assert interval.high == pytest.approx(36.62, abs=0.005)


def test_an_accuracy_of_100_percent_may_be_less() -> None:
    """n of n: the lower end is n / (n + z²), 10 / 13.84 for ten images."""
    interval = accuracy_interval(_correct(10, 10))
    assert interval.low == pytest.approx(100 * 10 / (10 + 1.959964**2))
    assert interval.high == pytest.approx(100)


def test_a_difference_by_hand() -> None:
    """Of 8 images, 3 are right with the first model only, 1 with the second only.

    With the two images added: p1 = 4/10, p2 = 2/10, variance (0.6 - 0.04) / 10.
    """
    first = torch.tensor([1.0, 1, 1, 0, 1, 1, 0, 0])
    second = torch.tensor([0.0, 0, 0, 1, 1, 1, 0, 0])
    interval = difference_interval(first, second)
    margin = 1.959964 * math.sqrt(0.056)
    assert interval.estimate == 25.0
    assert interval.low == pytest.approx(100 * (0.2 - margin), abs=1e-4)
    assert interval.high == pytest.approx(100 * (0.2 + margin), abs=1e-4)
    assert not interval.excludes_zero


def test_equal_models_differ_by_nothing_within_an_interval() -> None:
    same = _correct(70, 100)
    interval = difference_interval(same, same)
    assert interval.estimate == 0
    assert interval.low == -interval.high < 0


def test_a_large_difference_excludes_zero() -> None:
    assert difference_interval(_correct(90, 100), _correct(40, 100)).excludes_zero


# images, accuracy of both models, share of images on which exactly one of them is right
CASES = [(100, 0.8, 0.1), (100, 0.95, 0.04), (400, 0.75, 0.2), (400, 0.6, 0.5), (2000, 0.9, 0.05)]
DRAWS = 1000
# Below 95% by three standard deviations of a share of 1,000 draws.
LEAST = 0.95 - 3 * math.sqrt(0.95 * 0.05 / DRAWS)


@pytest.mark.parametrize(("n", "accuracy", "differing"), CASES)
def test_a_difference_is_covered_in_95_percent_of_test_sets(
    n: int, accuracy: float, differing: float
) -> None:
    """The first model is better by a quarter of the images on which the models differ."""
    stream = torch.Generator().manual_seed(n)
    gain = differing / 4
    first_only = (differing + gain) / 2
    second_only = (differing - gain) / 2
    both = accuracy - first_only
    edges = torch.tensor([both, first_only, second_only]).cumsum(0)
    covered = 0
    for _ in range(DRAWS):
        draw = torch.rand(n, generator=stream)
        kind = torch.bucketize(draw, edges)  # 0: both, 1: first only, 2: second only, 3: neither
        interval = difference_interval((kind <= 1).float(), ((kind == 0) | (kind == 2)).float())
        covered += interval.low <= 100 * gain <= interval.high
    assert covered / DRAWS >= LEAST


@pytest.mark.parametrize(("n", "clients"), [(200, 5), (400, 12)])
def test_a_difference_to_the_mean_of_several_models_is_covered(n: int, clients: int) -> None:
    """Each image has a difficulty, common to all models; the first model is 5 points better."""
    stream = torch.Generator().manual_seed(n)
    covered = 0
    for _ in range(DRAWS):
        easy = 0.4 + 0.5 * torch.rand(n, generator=stream)
        first = torch.rand(n, generator=stream) < easy + 0.05
        others = torch.rand(clients, n, generator=stream) < easy
        interval = difference_interval(first.float(), others.float().mean(0))
        covered += interval.low <= 5.0 <= interval.high
    assert covered / DRAWS >= LEAST
