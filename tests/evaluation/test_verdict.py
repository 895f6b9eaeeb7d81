"""The verdict on a run, and the outcomes that it is computed from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedssl.evaluation.outcomes import OUTCOMES, read_outcomes, write_outcomes
from fedssl.evaluation.score import Score
from fedssl.evaluation.verdict import judge


def _score(*models: list[int], apart: frozenset[str] = frozenset()) -> Score:
    """Return the score of models whose predictions are right (1) or wrong (0) for class 1."""
    score = Score()
    score.apart = apart
    for name, predictions in zip("abc", models, strict=False):
        score.add(
            name, torch.ones(len(predictions), dtype=torch.int64), torch.tensor(predictions), 2
        )
    return score


def test_outcomes_are_the_share_of_models_that_are_right() -> None:
    assert _score([1, 1, 0, 0], [1, 0, 0, 0]).correct.tolist() == [1.0, 0.5, 0.0, 0.0]


def test_models_apart_do_not_count() -> None:
    score = _score([1, 1, 0, 0], [0, 0, 0, 0], apart=frozenset("b"))
    assert score.correct.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert score.mean == 50.0


def test_the_verdict_names_the_gain_over_clients_alone() -> None:
    """80 of 100 images instead of 70: ten images only the run classifies, none only the clients.

    Bonett and Price: (10 - 0) / 102 = 0.0980, variance (0.1176 - 0.0096) / 102.
    """
    rows = {
        "this run": {"linear": _score([1] * 80 + [0] * 20)},
        "random": {"linear": _score([1] * 50 + [0] * 50)},
        "isolated": {"linear": _score([1] * 70 + [0] * 30)},
    }
    verdict = judge(rows)
    assert verdict.sentence == (
        "+10.0 points over each client training alone by the linear probe, 100 test images, "
        "95% interval +3.4 … +16.2"
    )
    assert verdict.values()["over"]["random"]["estimate"] == 30.0


def test_a_small_gain_is_not_claimed() -> None:
    rows = {
        "this run": {"knn": _score([1] * 8 + [0] * 2)},
        "isolated": {"knn": _score([1] * 7 + [0] * 3)},
    }
    sentence = judge(rows).sentence
    assert sentence.startswith("+10.0 points over each client training alone by kNN, 10 test")
    assert sentence.endswith(": too few test images to tell them apart")


def test_without_baselines_there_is_the_accuracy_alone() -> None:
    sentence = judge({"this run": {"linear": _score([1] * 81 + [0] * 182)}}).sentence
    assert sentence == (
        "30.8% by the linear probe on 263 test images, 95% interval 25.5 … 36.6; "
        "there is no baseline to compare with"
    )


def test_outcomes_are_written_and_read(tmp_path: Path) -> None:
    scores = {"this run": {"knn": _score([1, 1, 0, 0], [1, 0, 0, 0])}}
    write_outcomes(tmp_path, scores)
    assert read_outcomes(tmp_path)["this run", "knn"].tolist() == [1.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("damage", [b"", b"damaged"])
def test_missing_or_damaged_outcomes_are_empty(damage: bytes, tmp_path: Path) -> None:
    assert read_outcomes(tmp_path) == {}
    (tmp_path / OUTCOMES).write_bytes(damage)
    assert read_outcomes(tmp_path) == {}
