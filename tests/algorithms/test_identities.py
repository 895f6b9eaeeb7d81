"""Algorithms that equal others for some setting: whole runs with a real method, compared to the
last bit.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedssl.cli.combinations import Combination, images, tiny, train
from fedssl.core.state.state import State
from fedssl.core.state.tree import model

PAIRS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("byol", {"name": "fedprox", "mu": 0}, {"name": "fedavg"}),
    (
        "byol",
        {"name": "fedema", "lam": 0},
        {"name": "fedavg", "update": "online", "predictor": "global"},
    ),
    ("mocov2", {"name": "fedema", "lam": 0}, {"name": "fedavg"}),
    ("byol", {"name": "fedu", "mu": math.inf}, {"name": "fedavg", "predictor": "global"}),
    ("byol", {"name": "fedu", "mu": 0}, {"name": "fedavg", "predictor": "local"}),
    ("byol", {"name": "fedavgm", "momentum": 0}, {"name": "fedavg"}),
    (
        "byol",
        {"name": "fedavgm", "momentum": 0, "predictor": "local"},
        {"name": "fedavg", "predictor": "local"},
    ),
]


def encoder(method: str, algorithm: dict[str, Any], topology: str = "star") -> State:
    """Return backbone and projector after three rounds of two steps; a first step has no pull."""
    steps = {"batch": 4, "lr": 0.01, "workers": 1}
    experiment = tiny(
        Combination("fedavg", method, topology), algorithm=algorithm, rounds=3, train=steps
    )
    sites = train(experiment, images())
    return model(next(iter(sites.values())), "model").pick(("backbone", "projector"))


@pytest.mark.parametrize(("method", "ours", "theirs"), PAIRS, ids=lambda value: str(value))
def test_the_same_bits(method: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    one = encoder(method, ours)
    other = encoder(method, theirs)
    assert one.layout == other.layout
    assert torch.equal(one.floats, other.floats)


@pytest.mark.parametrize(
    "ours",
    [
        {"name": "fedprox"},
        {"name": "fedema"},
        {"name": "fedu", "mu": 0.0},
        {"name": "fedavgm"},
        {"name": "fedadam"},
    ],
    ids=str,
)
def test_with_other_settings_the_bits_differ(ours: dict[str, Any]) -> None:
    assert not torch.equal(encoder("byol", ours).floats, encoder("byol", {"name": "fedavg"}).floats)


def test_a_complete_graph_of_equal_clients_equals_a_star() -> None:
    """Up to rounding, since the sums have other weights."""
    one, other = (
        encoder("byol", {"name": "fedavg"}, topology) for topology in ("complete", "star")
    )
    torch.testing.assert_close(one.floats, other.floats, rtol=1e-5, atol=1e-6)
