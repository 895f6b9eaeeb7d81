"""Experiments whose uploads cannot be summed in secret are rejected at the start."""

from __future__ import annotations

from typing import Any

import pytest
from error_messages import raises
from fake_grid import CASES, Nodes, tiny

from fedssl.algorithm import ALGORITHMS
from fedssl.core.errors import ConfigError
from fedssl.experiment.experiment import Experiment
from fedssl.flower.secure_aggregation.requirements import check_clients, check_experiment

pytestmark = pytest.mark.rows("C8")

REJECTED: dict[str, Experiment] = {
    "fedca": tiny(*CASES["fedca"]),
    "ccl": tiny(*CASES["ccl"]),
    "featarc": tiny(*CASES["featarc"]),
    "global divergence": tiny("fedema", "byol", 'divergence = "global"'),
    "cycle": tiny("fedavg", "simclr", **{"topology.name": "cycle"}),
    "isolated": tiny("fedavg", "simclr", **{"topology.name": "isolated"}),
}


@pytest.mark.parametrize("name", REJECTED)
def test_algorithms_that_read_single_uploads(name: str) -> None:
    with raises(ConfigError):
        check_experiment(REJECTED[name])


@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "fedadam", "fedprox", "fedbn", "perssfl"])
def test_algorithms_that_read_means(name: str) -> None:
    check_experiment(tiny(name, "simclr"))


def test_divergences_that_clients_compute() -> None:
    check_experiment(tiny("fedu", "byol"))
    check_experiment(tiny("fedema", "byol"))
    check_experiment(tiny("fedema", "byol", 'divergence = "global"\nlam = 0.5'))


def test_every_registered_algorithm_is_listed_above() -> None:
    listed = {"fedca", "ccl", "featarc", "fedema", "fedu"}
    listed |= {"fedavg", "fedavgm", "fedadam", "fedprox", "fedbn", "perssfl"}
    assert listed == {name for name in ALGORITHMS.names() if not name.startswith("test")}


def _sampled(share: float) -> Experiment:
    return tiny("fedavg", "simclr", clients=10, **{"topology.participation": share})


def test_a_sum_of_two_is_rejected() -> None:
    """Also if two of ten clients are selected for a round."""
    with raises(ConfigError):
        check_clients(tiny("fedavg", "simclr", clients=2), 2)
    with raises(ConfigError):
        check_clients(_sampled(0.2), 10)
    check_clients(_sampled(0.3), 10)


@pytest.mark.parametrize(
    "settings",
    [
        {"mean.name": "median"},
        {"privacy": {"clip": 1.0, "noise": 1.0}, "method.norm": "group"},
    ],
)
def test_settings_by_which_a_server_reads_single_uploads(settings: dict[str, Any]) -> None:
    """A server that compares uploads with each other, or clips each of them."""
    with raises(ConfigError):
        check_experiment(tiny("fedavg", "simclr", **settings))


def test_a_rejected_start_leaves_no_run_directory(nodes: Nodes) -> None:
    experiment = REJECTED["fedca"]
    with raises(ConfigError):
        nodes.serve(experiment, nodes.grid(experiment), secure_aggregation=True)
    assert not (nodes.root / "flower").exists()


def test_two_clients_are_rejected_after_joining(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", clients=2)
    with raises(ConfigError):
        nodes.serve(experiment, nodes.grid(experiment), secure_aggregation=True)
    nodes.serve(experiment, nodes.grid(experiment))
