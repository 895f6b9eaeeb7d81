"""Whole runs of every algorithm: captured steps train what eager ones do."""

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


def compatible_method(algorithm: str) -> str:
    """Return BYOL, or MoCo v2 if the algorithm is not compatible with BYOL."""
    refused = attempt(Combination(algorithm, "byol", "star"), None).refused
    return "byol" if refused is None else "mocov2"


def final_weights(experiment: Experiment, mode: str) -> Tensor:
    """Return all models of the server and of three clients after three rounds of two steps."""
    chosen = experiment.with_changes({"train.mode": mode})
    memory = ClientMemory()
    with numerics(DEVICE, deterministic=True, exact=True):
        sites = train(chosen, images(), DEVICE, memory)
    states = [value for tree in sites.values() for value in tree.values()]
    states += models_of(chosen, sites, memory.snapshot(), DEVICE).values()
    return torch.cat([state.floats.cpu() for state in states if isinstance(state, State)])


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[torch.cuda.CUDAGraph]:
    """Collect the graph of each replay."""
    replayed = []
    replay = torch.cuda.CUDAGraph.replay

    def replay_and_record(graph: torch.cuda.CUDAGraph) -> None:
        replayed.append(graph)
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", replay_and_record)
    return replayed


@pytest.mark.parametrize("algorithm", ALGORITHMS.names())
def test_captured_steps_train_what_eager_ones_do(
    algorithm: str, replays: list[torch.cuda.CUDAGraph]
) -> None:
    """After 18 steps, of which 16 are replays, the weights' changes differ by less than 1%."""
    combination = Combination(algorithm, compatible_method(algorithm), "star")
    experiment = tiny(combination, rounds=3, train=STEPS)
    initial = final_weights(experiment.with_changes({"train.lr": 1e-12}), "eager")
    eager = final_weights(experiment, "eager")
    assert not replays
    captured = final_weights(experiment, "captured")
    assert len(replays) >= 8
    change = (eager - initial).norm()
    assert change > 0
    difference = (captured - eager).norm() / change
    print(f"{algorithm}: {len(replays)} steps replayed, relative difference {difference:.1e}")
    assert difference < 0.01
