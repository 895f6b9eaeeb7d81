"""The table of a sweep, and sweeps and tables that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from error_messages import raises

import fedssl
from fedssl.core.errors import ConfigError
from fedssl.paper_tables.plan import plan_seeds
from fedssl.paper_tables.sweep import split_values, sweep_table


def test_values_are_separated_by_commas_outside_of_brackets_and_quotes() -> None:
    assert split_values("0.1,0.2") == ["0.1", "0.2"]
    assert split_values("[0.2,1],[0.5,1.0]") == ["[0.2,1]", "[0.5,1.0]"]
    assert split_values('"a,b",c') == ['"a,b"', "c"]
    assert split_values("""{x="[,", y=1},2""") == ["""{x="[,", y=1}""", "2"]
    assert split_values("5") == ["5"]


def test_a_sweep_has_all_combinations() -> None:
    table = sweep_table(
        "demo", ["algorithm.mu=0.1,1", "method=byol,simclr", "rounds=2"], ["knn", "linear"]
    )
    assert len(table.cells) == 8
    assert table.title == "demo with rounds=2"
    assert table.cells[2].row == "algorithm.mu=0.1, method=simclr"
    assert table.cells[2].set == ("algorithm.mu=0.1", "method=simclr", "rounds=2")
    assert [cell.row for cell in sweep_table("demo", [], ["knn"]).cells] == ["as it is"]


@pytest.mark.parametrize(
    "wrong",
    [
        "rounds",
        "rounds=1,,2",
        "rounds=1,1",
        "rounds=[1",
        "seed=1,2",
        "train.lr=0.004,4e-3",
        "topology=a,'a'",
    ],
)
def test_a_sweep_with_invalid_values_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError):
        sweep_table("demo", [wrong], ["knn"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rounds=1,2", "rounds=2"),
        ("topology=star,isolated", "topology.name=star"),
        ("train.lr=0.1,0.2", "train={lr=0.3}"),
    ],
)
def test_a_key_that_two_set_is_refused(one: str, other: str) -> None:
    """Otherwise both rows would be trained with the last value."""
    for both in ([one, other], [other, one]):
        with raises(ConfigError):
            sweep_table("demo", both, ["knn"])
    sweep_table(
        "demo", ["method=byol,simclr", "method.dim=8,16", "train.lr=0.1", "train.batch=8"], ["knn"]
    )
    sweep_table(
        "demo", ["method=byol,simclr", "method={dim=8},{dim=16}", "train={lr=0.1}"], ["knn"]
    )


def test_a_table_in_a_sweep_changes_only_the_keys_it_names(tmp_path: Path) -> None:
    """So it trains and measures the same as dotted keys."""
    plans = []
    for changes in (
        ["train={lr=0.1}", "probe={labels=50}"],
        ["train.lr=0.1", "probe.labels=50"],
    ):
        table = sweep_table("demo", changes, ["semi"])
        plans += plan_seeds(table.cells, "", [0], tmp_path, torch.device("cpu"))
    tabled, dotted = plans
    assert tabled.problem is None
    assert tabled.training == dotted.training
    assert tabled.measure == dotted.measure
    assert tabled.measure is not None
    assert dict(tabled.measure.settings)["labels"] == 50


def test_a_probe_requested_twice_is_refused() -> None:
    """Otherwise its one figure would count as that of two seeds."""
    with raises(ConfigError):
        sweep_table("demo", [], ["knn", "linear", "knn"])


def test_unknown_names_are_refused_with_similar_ones(tmp_path: Path) -> None:
    with raises(ConfigError):
        fedssl.reproduce("fedema-fig7", dir=tmp_path)
    with raises(ConfigError):
        fedssl.reproduce("fedmea-3", dir=tmp_path)
    with raises(ConfigError):
        fedssl.reproduce("fedema-3", cells=["nosuch"], dir=tmp_path)
    with raises(ConfigError):
        fedssl.reproduce("fedema-3", scale="tiny", dir=tmp_path)
    with raises(ConfigError):
        fedssl.sweep("demo", probes=["nosuch"], dir=tmp_path)
    with raises(ConfigError):
        fedssl.sweep("demo", ["rouns=1,2"], dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
