"""The verdict on a run, and the outcomes that it is computed from."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from fedssl.evaluation.advice import LabelCounts
from fedssl.evaluation.outcomes import OUTCOMES, outcomes_of, read_outcomes, write_outcomes
from fedssl.evaluation.score import Score
from fedssl.evaluation.verdict import judge, line, signed

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
        "±2 points (there are 10)"
    )


def test_if_half_of_the_images_train_the_probes_twice_as_many_are_needed() -> None:
    """One of 100 more: Bonett and Price's variance is ((1 + 2) / 102 - (1 / 102)²) / 102.

    The half-width is 3.323 points: 100 · (3.323 / 2)² = 276 images are to be tested on, so that 552
    must be labelled. The probes learned from 99 images and were tested on 100.
    """
    outcomes = {("this run", "knn"): _right(51), ("isolated", "knn"): _right(50)}
    assert judge([outcomes], LabelCounts({"knn": 99})).advice == [
        SEEDS,
        "about 280 labelled test images would narrow the interval to ±2 points (there are 100)",
    ]
    assert judge([outcomes], LabelCounts({"knn": 99}, halved=True)).advice == [
        SEEDS,
        "about 550 labelled test images would narrow the interval to ±2 points (there are 199; "
        "half of them train the probes)",
    ]


def test_a_probe_with_another_conclusion_is_named() -> None:
    outcomes = {
        ("this run", "linear"): _right(51),
        ("isolated", "linear"): _right(50),
        ("this run", "knn"): _right(80),
        ("isolated", "knn"): _right(70),
    }
    assert judge([outcomes]).sentence.endswith(
        "95% interval -2.3 … +4.3 over test images, one seed; by kNN it is better: +10.0 points, "
        "95% interval +3.4 … +16.2"
    )
    outcomes["this run", "knn"] = _right(71)
    assert judge([outcomes]).sentence.endswith("one seed")


def test_two_accuracies_near_100_are_not_told_apart() -> None:
    outcomes = {("this run", "linear"): _right(100), ("isolated", "linear"): _right(99)}
    problem = (
        "this run and clients that train alone are near 100% by the linear probe: this test cannot "
        "tell them apart; try "
    )
    assert judge([outcomes], LabelCounts({"linear": 1500})).advice == [
        SEEDS,
        f"{problem}fewer labels, --set probe.labels=150",
    ]
    assert judge([outcomes], LabelCounts({"linear": 12})).advice == [
        SEEDS,
        f"{problem}images or classes that are harder to tell apart",
    ]
    outcomes["isolated", "linear"] = _right(97)  # three errors
    assert "would narrow" in judge([outcomes]).advice[1]


def test_three_accuracies_near_100_have_one_sentence() -> None:
    outcomes = dict.fromkeys([(row, "knn") for row in ("this run", "isolated", "random")])
    _, advice = judge([dict.fromkeys(outcomes, _right(100))]).advice
    assert advice.startswith(
        "this run and clients that train alone and an untrained backbone are near 100% by kNN"
    )


def test_one_probe_without_a_gain_over_random_weights_is_reported() -> None:
    def advice(linear: int, knn: int, labels: int = 90) -> list[str]:
        outcomes = {
            ("this run", "linear"): _right(60),
            ("isolated", "linear"): _right(40),
            ("random", "linear"): _right(linear),
            ("this run", "knn"): _right(60),
            ("isolated", "knn"): _right(40),
            ("random", "knn"): _right(knn),
        }
        return judge([outcomes], LabelCounts({"linear": labels})).advice[1:]

    assert advice(40, 40) == []
    assert advice(40, 60) == [
        "by kNN the backbone is not clearly better than an untrained one (60.0%, untrained 60.0%)"
    ]
    disagree = (
        "by the linear probe the backbone is not clearly better than an untrained one (60.0%, "
        "untrained 59.0%), but by kNN it is: the probes disagree"
    )
    assert advice(59, 40) == [f"{disagree}, and 90 labels may be too few for the linear probe"]
    assert advice(59, 40, labels=5000) == [disagree]
    (both,) = advice(59, 59)
    assert both.endswith("train more rounds, or look at its views with `fedssl views`")


def test_without_a_baseline_the_line_is_no_verdict() -> None:
    outcomes = {("this run", "knn"): _right(8, 10)}
    assert line(judge([outcomes]).values()).startswith("result: 80.0% by kNN")
    outcomes["random", "knn"] = _right(7, 10)
    assert line(judge([outcomes]).values()).startswith("verdict: no clear difference")


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


@pytest.mark.parametrize(
    ("alone", "advice"),
    [
        (85, "the seeds do not agree (+5.0, -5.0): --seeds 5 would show more than new test images"),
        (75, None),
    ],
)
def test_seeds_that_gain_and_lose_need_more_seeds(alone: int, advice: str | None) -> None:
    verdict = judge(
        [
            {("this run", "knn"): _right(80), ("isolated", "knn"): _right(75)},
            {("this run", "knn"): _right(80), ("isolated", "knn"): _right(alone)},
        ]
    )
    assert [line for line in verdict.advice if "agree" in line] == [advice] * (advice is not None)


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
