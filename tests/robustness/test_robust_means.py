"""Runs with robust means: every algorithm, rounds that fail, peers, resumed runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from error_messages import raises
from factories import interrupted_in_round
from replay import CASES, CLIENTS, fitting, models

from fedssl.algorithm import ALGORITHMS
from fedssl.cli.combinations import images, train
from fedssl.core.errors import ConfigError
from fedssl.core.state.state import State
from fedssl.engine.means.held_models import HeldModels
from fedssl.runs.session import Interrupted


@pytest.mark.parametrize("case", CASES)
def test_every_algorithm_trains_two_rounds_with_medians(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    medians = []
    result = HeldModels.result

    def recorded(held: HeldModels) -> State:
        medians.append(result(held))
        return medians[-1]

    monkeypatch.setattr(HeldModels, "result", recorded)
    experiment = fitting(CASES[case], "star")
    assert experiment is not None
    changed = experiment.with_changes({"mean": "median"})
    if not ALGORITHMS[CASES[case]["name"]].averages_all:
        with raises(ConfigError):
            changed.check()
        return
    changed.check()
    sites = train(changed, images())
    averaged = models(sites["server"])
    assert len(medians) in (2, 4)  # one or two models, in two rounds
    assert all(bool(torch.isfinite(state.floats).all()) for state in averaged.values())


@pytest.mark.parametrize("mean", ["median", "trimmed-mean", "krum", "multi-krum"])
def test_peers(mean: str) -> None:
    """In a complete graph all peers merge the same uploads, so that all have one model."""
    experiment = fitting({"name": "fedavg"}, "complete")
    assert experiment is not None
    sites = train(experiment.with_changes({"mean": mean}), images())
    assert len(sites) == CLIENTS
    first, *others = (models(site)["model"].floats for site in sites.values())
    assert all(torch.equal(first, other) for other in others)


def test_a_resumed_run_has_the_same_bits(federation: Any) -> None:
    sets = ("rounds=3", "mean=trimmed-mean", "mean.trim=1", "guard=strict", "train.workers=1")
    federation.here("whole", "simclr", *sets)
    with interrupted_in_round(2), pytest.raises(Interrupted):
        federation.here("resumed", "simclr", *sets)
    federation.here("resumed", "simclr", *sets)
    assert federation.hashes("resumed") == federation.hashes("whole")


def test_baselines_have_no_robust_mean(federation: Any) -> None:
    """Clients that train alone merge nothing; an experiment of them with a median is rejected."""
    sets = ("rounds=1", "mean=median", "probe.k=3", 'probe.baselines=["isolated", "centralized"]')
    run = federation.here("run", "simclr", *sets)
    rows: Mapping[str, Any] = run.results["table"]
    assert {"this run", "isolated", "centralized"} <= rows.keys()


def test_clients_with_too_few_images_send_no_upload(federation: Any) -> None:
    """Three clients, of which one has a single image: every round would fail."""
    sizes = [24, 23, 1]
    clients = {}
    for i, size in enumerate(sizes):
        clients[str(i)] = list(range(sum(sizes[:i]), sum(sizes[:i]) + size))
    path = federation.root / "clients.json"
    path.write_text(json.dumps(clients))
    with raises(ConfigError):
        federation.here(
            "run", "simclr", "mean=median", "partition.name=listed", f"partition.path={path}"
        )
    assert not (federation.root / "run").exists()
