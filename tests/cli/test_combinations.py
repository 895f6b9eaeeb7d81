"""Every algorithm × method × topology trains with finite weights, or is refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from fedssl.algorithm import ALGORITHMS
from fedssl.cli.combinations import (
    WORKS,
    Combination,
    Compatibility,
    attempt,
    attempts,
    combinations,
    compatibility_tables,
    images,
    tiny,
    train,
)
from fedssl.core.state.tree import model
from fedssl.data import Dataset
from fedssl.experiment.experiment import Experiment
from fedssl.method import METHODS
from fedssl.topologies.topology import TOPOLOGIES

PAGE = Path(__file__).parents[2] / "docs" / "combinations.md"
USUAL = [("byol", "star"), ("simclr", "cycle"), ("mocov2", "isolated")]


@pytest.fixture(scope="module")
def data() -> Dataset:
    return images()


@pytest.mark.parametrize("algorithm", ALGORITHMS.names())
def test_each_algorithm(algorithm: str, data: Dataset) -> None:
    verdicts = [attempt(Combination(algorithm, *rest), data) for rest in USUAL]
    assert [verdict.failed for verdict in verdicts] == [None] * len(USUAL)
    assert WORKS in verdicts


@pytest.mark.parametrize("method", METHODS.names())
def test_each_method(method: str, data: Dataset) -> None:
    for topology in ("star", "complete"):
        assert attempt(Combination("fedavg", method, topology), data) == WORKS


@pytest.mark.parametrize("topology", TOPOLOGIES.names())
def test_each_topology(topology: str, data: Dataset) -> None:
    assert attempt(Combination("fedavg", "simsiam", topology), data) == WORKS


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS.names())
@pytest.mark.parametrize("algorithm", ALGORITHMS.names())
def test_all(algorithm: str, method: str, data: Dataset) -> None:
    """Checks and trainings have the same verdict on each combination, and no training fails."""
    some = [c for c in combinations() if (c.algorithm, c.method) == (algorithm, method)]
    checked = dict(attempts(None, some))
    trained = dict(attempts(data, some))
    assert trained == checked
    assert not any(verdict.failed for verdict in trained.values())


def test_a_refusal_names_what_is_missing() -> None:
    refusal = attempt(Combination("fedu", "simclr", "star"), None).refused
    assert (
        refusal
        == 'algorithm "fedu" needs a method with a predictor, but method "simclr" has none with these settings. Choose another method or algorithm: `fedssl combinations` lists those that fit'
    )


def _trained_weights(experiment: Experiment, data: Dataset) -> Tensor:
    return model(train(experiment, data)["server"], "model").floats


def test_training_moves_the_model(data: Dataset) -> None:
    experiment = tiny(Combination("fedavg", "simclr", "star"))
    once = _trained_weights(experiment, data)
    twice = _trained_weights(experiment, data)
    longer = _trained_weights(experiment.with_changes({"rounds": 3}), data)
    assert once.equal(twice)
    assert not once.equal(longer)


def test_a_failure_is_a_verdict(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr("fedssl.algorithms.FedAvg.merge", broken)
    combination = Combination("fedavg", "simclr", "star")
    verdict = attempt(combination, data)
    assert verdict == Compatibility(failed="ValueError: no")
    table = compatibility_tables({combination: verdict, combination._replace(method="byol"): WORKS})
    assert table.splitlines()[2:4] == ["| simclr | 1 |", "| byol | yes |"]
    assert table.splitlines()[-1] == "1. ValueError: no"


def test_the_page_has_the_table(cli: Callable[..., tuple[int, str, str]]) -> None:
    code, printed, _ = cli("combinations")
    assert code == 0
    assert printed.strip() in PAGE.read_text("utf-8"), (
        "put what `fedssl combinations` prints into docs/combinations.md"
    )
