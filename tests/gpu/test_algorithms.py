"""Whole runs of every algorithm: steps recorded as CUDA graphs train what eager ones do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedssl.algorithm import ALGORITHMS
from fedssl.cli.combinations import Combination, attempt, images, tiny, train
from fedssl.core.devices.precision import numerics
from fedssl.core.state.state import State
from fedssl.engine.checkpoints.client_memory import ClientMemory
from fedssl.evaluation.models import models_of
from fedssl.experiment.experiment import Experiment

DEVICE = torch.device("cuda", 0)
STEPS = {"batch": 4, "lr": 0.001, "workers": 1, "precision": "fp32", "deterministic": True}


def fitting(algorithm: str) -> str:
    """Return the first of some methods that is compatible with an algorithm."""
    some = [
        method
        for method in ("byol", "mocov2")
        if attempt(Combination(algorithm, method, "star"), None).refused is None
    ]
    return some[0]


def rows(experiment: Experiment, mode: str, device: torch.device = DEVICE) -> Tensor:
    """Return all models of the server and of three clients after three rounds of two steps."""
    chosen, memory = experiment.with_changes({"train.mode": mode}), ClientMemory()
    with numerics(device, deterministic=True, exact=True):
        sites = train(chosen, images(), device, memory)
    own = models_of(chosen, sites, memory.snapshot(), device)
    held = [value for tree in sites.values() for value in tree.values() if isinstance(value, State)]
    return torch.cat([state.floats.cpu() for state in (*held, *own.values())])


@pytest.mark.parametrize("algorithm", ALGORITHMS.names())
def test_captured_is_eager(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 18 steps, of which 16 are replayed: the updates differ by less than a hundredth."""
    experiment = tiny(Combination(algorithm, fitting(algorithm), "star"), rounds=3, train=STEPS)
    replayed: list[int] = []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "replay", lambda graph: (replayed.append(1), replay(graph))
    )
    start, eager = (
        rows(e, "eager") for e in (experiment.with_changes({"train.lr": 1e-12}), experiment)
    )
    assert not replayed
    captured = rows(experiment, "captured")
    assert len(replayed) >= 8
    way = (eager - start).norm()
    assert way > 0
    print(
        f"{algorithm}: {len(replayed)} steps replayed, off by {((captured - eager).norm() / way).item():.1e}"
    )
    assert (captured - eager).norm() < 0.01 * way
