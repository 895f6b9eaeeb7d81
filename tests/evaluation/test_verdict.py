"""The verdict on a run, and the outcomes that it is computed from."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from fedssl.evaluation.outcomes import OUTCOMES, outcomes_of, read_outcomes, write_outcomes
from fedssl.evaluation.score import Score
from fedssl.evaluation.verdict import judge, signed

SEEDS = "--seeds 3 shows the spread over seeds"


def _score(*models: list[int], excluded: frozenset[str] = frozenset()) -> Score:
    """Return the score of models whose predictions are right (1) or wrong (0) for class 1."""
    score = Score()
    score.excluded = excluded
    for name, predictions in zip("abc", models, strict=False):
        score.add(
            name, torch.ones(len(predictions), dtype=torch.int64), torch.tensor(predictions), 2
        )
    return score


def test_outcomes_are_the_share_of_models_that_are_right() -> None:
    assert _score([1, 1, 0, 0], [1, 0, 0, 0]).correct.tolist() == [1.0, 0.5, 0.0, 0.0]


def test_models_apart_do_not_count() -> None:
    score = _score([1, 1, 0, 0], [0, 0, 0, 0], excluded=frozenset("b"))
    assert score.correct.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert score.mean == 50.0


def _right(count: int, n: int = 100) -> torch.Tensor:
    """Return the outcomes of a model that is right on the first `count` of n images."""
    return (torch.arange(n) < count).float()


def test_the_verdict_names_the_gain_over_clients_alone() -> None:
    """80 of 100 images instead of 70: ten images only the run classifies, none only the clients.

    Bonett and Price: (10 - 0) / 102 = 0.0980, variance (0.1176 - 0.0096) / 102.
    """
    verdict = judge(
        [
            {
                ("this run", "linear"): _right(80),
                ("random", "linear"): _right(50),
                ("isolated", "linear"): _right(70),
            }
        ]
    )
    assert verdict.sentence == (
        "better than clients that train alone: +10.0 points by the linear probe, 100 test images, "
        "95% interval +3.4 … +16.2 over test images, one seed"
    )
    assert verdict.values()["gains"]["random"]["linear"]["estimate"] == 30.0


def test_a_small_gain_is_not_claimed() -> None:
    outcomes = {("this run", "knn"): _right(8, 10), ("isolated", "knn"): _right(7, 10)}
    verdict = judge([outcomes])
    assert verdict.sentence.startswith(
        "no clear difference from clients that train alone: +10.0 points by kNN, 10 test images"
    )
    seeds, advice = verdict.advice
    assert seeds == SEEDS
    low, high = verdict.gains["isolated"]["knn"].interval[1:]
    needed = 10 * ((high - low) / 2 / 2.0) ** 2  # the width is proportional to 1/√n
    assert advice == (
        f"about {float(f'{needed:.2g}'):,.0f} labelled test images would narrow the interval to "
        "±2 points"
    )


def test_an_interval_that_is_narrow_already_is_not_given_a_number_of_images() -> None:
    """One of 10,000 images differs: the interval is less than ±2 points wide."""
    outcomes = {
        ("this run", "knn"): _right(5001, 10_000),
        ("isolated", "knn"): _right(5000, 10_000),
    }
    assert judge([outcomes]).advice == [
        SEEDS,
        "more labelled test images narrow the interval",
    ]


def test_a_loss_is_stated_as_such() -> None:
    outcomes = {("this run", "knn"): _right(40), ("isolated", "knn"): _right(70)}
    verdict = judge([outcomes])
    assert verdict.sentence.startswith("worse than clients that train alone: -30.0 points by kNN")
    assert verdict.advice == [SEEDS]


def test_a_backbone_that_may_be_no_better_than_random_weights_is_reported() -> None:
    """One image of a hundred more is no evidence; ten are."""
    base = {("this run", "knn"): _right(60), ("isolated", "knn"): _right(40)}
    assert judge([base | {("random", "knn"): _right(50)}]).advice == [SEEDS]
    _, advice = judge([base | {("random", "knn"): _right(59)}]).advice
    assert advice.startswith("the backbone is not clearly better than an untrained one")


def test_differences_that_round_to_zero_have_no_sign() -> None:
    assert [signed(points) for points in (-0.04, 0.04, 0.05001, -0.6)] == [
        "0.0",
        "0.0",
        "+0.1",
        "-0.6",
    ]


def test_without_baselines_there_is_the_accuracy_alone() -> None:
    sentence = judge([{("this run", "linear"): _right(81, 263)}]).sentence
    assert sentence == (
        "30.8% by the linear probe, 263 test images, 95% interval 25.5 … 36.6 over test images, "
        "one seed; there is no baseline to compare with"
    )


def test_seeds_are_averaged_and_their_spread_is_stated() -> None:
    """Gains of 10 and 20 points: mean 15, standard deviation √50 = 7.07.

    Paired on the 100 images: ten images with a difference of 1, ten with 1/2. Bonett and Price:
    15 / 102 = 0.147, variance ((10 + 2.5 + 2) / 102 - 0.0216) / 102.
    """
    verdict = judge(
        [
            {("this run", "knn"): _right(80), ("isolated", "knn"): _right(70)},
            {("this run", "knn"): _right(90), ("isolated", "knn"): _right(70)},
        ]
    )
    gain = verdict.gains["isolated"]["knn"]
    assert gain.interval.estimate == pytest.approx(15)
    assert gain.std == pytest.approx(math.sqrt(50))
    margin = 1.959964 * math.sqrt((14.5 / 102 - (15 / 102) ** 2) / 102)
    assert gain.interval.low == pytest.approx(100 * (15 / 102 - margin), abs=1e-4)
    assert " by kNN (mean of 2 seeds, std 7.1), 100 test images," in verdict.sentence
    assert verdict.sentence.endswith(" over test images, not over seeds")
    assert gain.values()["seeds"] == [10.0, 20.0]


def test_outcomes_are_written_and_read(tmp_path: Path) -> None:
    scores = {"this run": {"knn": _score([1, 1, 0, 0], [1, 0, 0, 0])}}
    write_outcomes(tmp_path, outcomes_of(scores))
    assert read_outcomes(tmp_path)["this run", "knn"].tolist() == [1.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("damage", [b"", b"damaged"])
def test_missing_or_damaged_outcomes_are_empty(damage: bytes, tmp_path: Path) -> None:
    assert read_outcomes(tmp_path) == {}
    (tmp_path / OUTCOMES).write_bytes(damage)
    assert read_outcomes(tmp_path) == {}
