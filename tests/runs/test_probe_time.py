"""The estimated time of measuring one model, with trials that take a known time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedssl.evaluation.evaluate import Evaluation
from fedssl.experiment.federation_setup import build_method
from fedssl.runs import probe_time
from fedssl.runs.probe_time import ProbeSeconds, probe_seconds
from tests.factories import bright_dataset, make_experiment

CPU = torch.device("cpu")


@pytest.fixture
def one_second_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trial takes 1 s: an image, 32 images, all 48 images, kNN, and the linear probe."""
    for name in ("_seconds", "_median_time"):
        monkeypatch.setattr(probe_time, name, lambda work: float(bool(len(work()))))


def _estimate(train: int = 48, test: int = 24, **probe: Any) -> ProbeSeconds:
    experiment = make_experiment(probe=probe)
    evaluation = Evaluation(experiment, bright_dataset(train, test), CPU)
    state = build_method(experiment, (3, 10, 10), CPU).state
    return probe_seconds(evaluation, state)


@pytest.mark.usefixtures("one_second_trials")
def test_features_take_the_time_of_their_batches() -> None:
    """A batch of 1 takes as long as one of 48, so that features cost 1 s for each of 2 batches.

    kNN on all 48 and 24 images takes 1 s more. Of 4,000 and 1,500 images, 6 batches take 6 s and
    kNN, tried with 2,000 and 48, 2 · 31.25 s: the sample is too small for a network that slow.
    """
    assert _estimate().knn == 3.0
    assert _estimate(4000, 1500).knn == pytest.approx(6 + 62.5)


@pytest.mark.usefixtures("one_second_trials")
@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"epochs": 5}, 1.0),
        ({"epochs": 500}, 50.0),  # 10 are tried
        ({"epochs": 500, "labels": 12}, 50.0),  # few images take a step in each epoch too
        ({"solver": "lbfgs"}, 100 / 30),  # typical evaluations, and the iterations that are tried
    ],
)
def test_the_linear_probe_takes_the_time_of_its_passes(
    settings: dict[str, Any], seconds: float
) -> None:
    estimate = _estimate(linear=True, **settings)
    assert estimate.model - estimate.knn == pytest.approx(seconds)


@pytest.mark.usefixtures("one_second_trials")
def test_more_labelled_images_than_are_tried_take_longer() -> None:
    """2,000 of 5,000 images are tried, and 10 of 100 epochs."""
    estimate = _estimate(5000, linear=True, epochs=100)
    assert estimate.model - estimate.knn == pytest.approx(10 * 2.5)


def test_the_first_trial_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first takes 1.5 s, the next 0.2, 0.1 and 0.3 s. One of 2.5 s is not repeated."""
    times = iter([1.5, 0.2, 0.1, 0.3, 2.5, 1.0])
    monkeypatch.setattr(probe_time, "_time", lambda work: next(times))
    assert probe_time._seconds(lambda: torch.zeros(1)) == 0.2
    assert probe_time._seconds(lambda: torch.zeros(1)) == 2.5
    assert list(times) == [1.0]
