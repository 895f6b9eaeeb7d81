"""Every algorithm × method × topology trains with finite weights or is refused by what it lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedssl.algorithm import ALGORITHMS
from fedssl.combinations import Combination, Outcome, attempt, attempts, combinations, images, tables, tiny, train
from fedssl.data import Dataset
from fedssl.method import METHODS
from fedssl.topology import TOPOLOGIES
from fedssl.tree import model

PAGE = Path(__file__).parents[1] / "docs" / "combinations.md"
USUAL = [("byol", "star"), ("simclr", "cycle"), ("mocov2", "isolated")]


@pytest.fixture(scope="module")
def data() -> Dataset:
    return images()


@pytest.mark.parametrize("algorithm", ALGORITHMS.names())
def test_each_algorithm(algorithm: str, data: Dataset) -> None:
    outcomes = [attempt(Combination(algorithm, *rest), data) for rest in USUAL]
    assert [outcome.failed for outcome in outcomes] == [None] * len(USUAL)
    assert Outcome() in outcomes


@pytest.mark.parametrize("method", METHODS.names())
def test_each_method(method: str, data: Dataset) -> None:
    for topology in ("star", "complete"):
        assert attempt(Combination("fedavg", method, topology), data) == Outcome()


@pytest.mark.parametrize("topology", TOPOLOGIES.names())
def test_each_topology(topology: str, data: Dataset) -> None:
    assert attempt(Combination("fedavg", "simsiam", topology), data) == Outcome()


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS.names())
@pytest.mark.parametrize("algorithm", ALGORITHMS.names())
def test_all(algorithm: str, method: str, data: Dataset) -> None:
    """What is only asked agrees with what is tried: nothing fails that was not refused."""
    some = [c for c in combinations() if (c.algorithm, c.method) == (algorithm, method)]
    asked, tried = dict(attempts(None, some)), dict(attempts(data, some))
    assert tried == asked
    assert not any(outcome.failed for outcome in tried.values())


def test_a_refusal_names_what_is_missing() -> None:
    refusal = attempt(Combination("fedu", "simclr", "star"), None).refused
    assert refusal == 'algorithm "fedu" as set needs a method with a predictor; "simclr" as set has none'


def test_training_moves_the_model(data: Dataset) -> None:
    experiment = tiny(Combination("fedavg", "simclr", "star"))
    once, twice, longer = (
        model(train(e, data)["server"], "model").floats
        for e in (experiment, experiment, experiment.with_changes({"rounds": 3}))
    )
    assert once.equal(twice)
    assert not once.equal(longer)


def test_what_goes_wrong_is_said(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr("fedssl.algorithms.FedAvg.merge", broken)
    combination = Combination("fedavg", "simclr", "star")
    outcome = attempt(combination, data)
    assert outcome == Outcome(failed="ValueError: no")
    table = tables({combination: outcome, combination._replace(method="byol"): Outcome()})
    assert table.splitlines()[2:4] == ["| simclr | 1 |", "| byol | yes |"]
    assert table.splitlines()[-1] == "1. ValueError: no"


def test_the_page_has_the_table(cli: Callable[..., tuple[int, str, str]]) -> None:
    code, printed, _ = cli("combinations")
    assert code == 0
    assert printed.strip() in PAGE.read_text("utf-8"), "put what `fedssl combinations` prints into docs/combinations.md"
