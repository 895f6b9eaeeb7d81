"""The cost of a malicious client whose uploads are within all bounds, on the demo."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.attackers import ATTACKS
from benchmarks.attacks import DEFENCES, measure

pytestmark = pytest.mark.rows("U12")

SEEDS = (0, 1, 2)
ROUNDS = 12


def mean_accuracy(attack: str) -> float:
    runs = [measure(ATTACKS[attack], DEFENCES["trimmed mean"], seed, ROUNDS) for seed in SEEDS]
    return statistics.fmean(run["knn"] for run in runs)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_with_the_recommended_mean_inverted_updates_cost_at_most_one_point() -> None:
    """Three seeds: a change of one point is more than the median difference between seeds."""
    honest = mean_accuracy("honest")
    assert honest - mean_accuracy("sign flip x 1") <= 1
    assert honest - mean_accuracy("sign flip x 8") <= 1
