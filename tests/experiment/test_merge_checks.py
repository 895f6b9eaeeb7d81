"""Experiments in which a site would merge too few uploads for its mean are rejected."""

from __future__ import annotations

from typing import Any

import pytest
from error_messages import raises
from factories import default_experiment, make_experiment

from fedssl.algorithm import ALGORITHMS
from fedssl.core.errors import ConfigError
from fedssl.engine.means.krum import Krum
from fedssl.engine.means.median import Median
from fedssl.engine.means.trimmed_mean import TrimmedMean
from fedssl.experiment.client_data import check_plan
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.merge_checks import check_mean

FIVE = list("abcde")


def test_a_mean_by_its_name_or_as_a_table() -> None:
    assert default_experiment(mean="median").mean == Median()
    table = default_experiment(mean={"name": "trimmed-mean", "trim": 2})
    assert table.mean == TrimmedMean(trim=2)
    assert table.with_changes({"mean": "krum"}).mean == Krum()
    assert Experiment.from_toml(table.to_toml()) == table


def test_the_default_mean_is_not_part_of_the_hash() -> None:
    plain = default_experiment()
    assert plain.with_changes({"mean": "weighted"}).hash() == plain.hash()
    assert plain.with_changes({"mean": "median"}).hash() != plain.hash()


@pytest.mark.parametrize(
    "settings",
    [
        {"clients": 2, "mean": "median"},
        {"clients": 4, "mean": "krum"},
        {"clients": 4, "mean": {"name": "trimmed-mean", "trim": 2}},
        {"clients": 10, "mean": "krum", "topology.participation": 0.4},
        {"topology.name": "isolated", "mean": "median"},
        {"topology.name": "centralized", "mean": "median"},
        {"algorithm.name": "featarc", "mean": "median"},
        {"mean": "medien"},
        {"mean": {"name": "krum", "f": -1}},
    ],
)
def test_rejected_before_images_are_read(settings: dict[str, Any]) -> None:
    with raises(ConfigError):
        make_experiment({"clients": 5, **settings}).check()


@pytest.mark.parametrize(
    "settings",
    [
        {"clients": 3, "mean": "median"},
        {"clients": 5, "mean": "krum"},
        {"clients": 10, "mean": "krum", "topology.participation": 0.5},
        {"topology.name": "complete", "mean": "krum"},
    ],
)
def test_accepted(settings: dict[str, Any]) -> None:
    make_experiment({"clients": 5, **settings}).check()


@pytest.mark.parametrize(
    ("mean", "topology"),
    [
        ("krum", {"name": "cycle"}),  # each peer merges three uploads, its own included
        ("median", {"name": "tree"}),  # two at a leaf
        ("median", {"name": "edges", "edges": [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")]}),
        ("median", {"name": "complete", "participation": 0.4}),
    ],
)
def test_peers_with_too_few_neighbours(mean: str, topology: dict[str, Any]) -> None:
    experiment = make_experiment({"clients": 5, "mean": mean, "topology": topology})
    experiment.check()  # the graph is not known before the clients are
    with raises(ConfigError):
        check_plan(experiment, FIVE)


@pytest.mark.parametrize(
    ("mean", "topology"),
    [("median", {"name": "cycle"}), ("krum", {"name": "complete"})],
)
def test_peers_with_enough_neighbours(mean: str, topology: dict[str, Any]) -> None:
    check_plan(make_experiment({"clients": 5, "mean": mean, "topology": topology}), FIVE)


def test_every_round_of_peers_that_are_drawn_is_checked() -> None:
    """Three of five peers in a cycle: in some round, one has a single neighbour."""
    topology = {"name": "cycle", "participation": 0.6}
    experiment = make_experiment(
        {"clients": 5, "mean": "median", "topology": topology, "rounds": 20}
    )
    with raises(ConfigError):
        check_plan(experiment, FIVE)


def test_a_robust_mean_with_privacy() -> None:
    experiment = make_experiment(
        {"clients": 5, "mean": "median", "privacy": {"clip": 1.0, "noise": 1.0}}
    )
    with raises(ConfigError):
        check_mean(experiment.mean, experiment.algorithm, experiment.topology, experiment.privacy)


def test_averaging_in_groups_is_declared() -> None:
    assert [name for name in ALGORITHMS.names() if not ALGORITHMS[name].averages_all] == ["featarc"]
