"""The estimated time of a whole run, before its first round."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedssl
from fedssl.evaluation.evaluate import Evaluation
from fedssl.experiment.client_data import partition_data
from fedssl.experiment.federation_setup import Federation
from fedssl.runs.probe_time import ProbeSeconds
from fedssl.runs.time_estimate import (
    baseline_model_count,
    busiest_worker,
    estimate_run,
    model_count,
    training_speed,
)
from tests.factories import bright_dataset, make_experiment

CPU = torch.device("cpu")


def _estimate_inputs(**changes: Any) -> tuple[Federation, Evaluation]:
    """Return the federation and the evaluation of a tiny run."""
    experiment = make_experiment(probe__baselines=None, **changes)
    data = bright_dataset()
    seen, owners = partition_data(experiment, data, lambda line: None)
    federation = Federation.build(experiment, seen, owners, public=None, device=CPU)
    return federation, Evaluation(experiment, data, CPU)


def test_the_largest_client_starts_first() -> None:
    """Two workers: 6 and 5 images, then 3 to the second, 1 to the first."""
    assert busiest_worker([1, 3, 5, 6], 2) == 8
    assert busiest_worker([4, 4], 8) == 4


def test_the_trial_does_not_change_the_models() -> None:
    federation, _ = _estimate_inputs()
    before = [trainer.method.state.clone() for trainer in federation.trainers]
    speed = training_speed(federation)
    assert speed is not None
    assert speed > 0
    for trainer, state in zip(federation.trainers, before, strict=True):
        assert torch.equal(trainer.method.state.floats, state.floats)
        assert torch.equal(trainer.method.state.counts, state.counts)


def test_clients_alone_take_as_long_as_a_run_of_all_clients(tmp_path: Path) -> None:
    estimate = estimate_run(*_estimate_inputs(), tmp_path, 0)
    assert estimate.training is not None
    assert estimate.later.baselines == 1.0
    assert estimate.later.measuring > 0


def test_twice_the_rounds_take_twice_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 images per worker at 4 images/s are 6 s a round."""
    monkeypatch.setattr("fedssl.runs.time_estimate.training_speed", lambda federation: 4.0)
    federation, evaluation = _estimate_inputs(clients=2, train__workers=2, probe__every=0, rounds=6)
    assert estimate_run(federation, evaluation, tmp_path, 0).training == 36.0
    assert estimate_run(federation, evaluation, tmp_path, 3).training == 18.0


@pytest.mark.parametrize(
    ("algorithm", "topology", "models"),
    [
        ("fedavg", "star", 1),
        ("fedavg", "isolated", 3),
        ("fedavg", "cycle", 4),  # three peers and their mean
        ("fedbn", "star", 3),
    ],
)
def test_as_many_models_are_counted_as_a_run_measures(
    tmp_path: Path, algorithm: str, topology: str, models: int
) -> None:
    changes = {"algorithm.name": algorithm, "topology.name": topology}
    experiment = make_experiment(changes, rounds=1)
    run = fedssl.run(experiment, tmp_path / "run", "cpu", dataset=bright_dataset(), quiet=True)
    assert run.results["models"] == models
    assert model_count(experiment, ["0", "1", "2"]) == models


def test_a_baseline_that_is_the_run_itself_is_not_measured_again() -> None:
    clients = ["0", "1", "2"]
    star = make_experiment()
    alone = make_experiment({"topology.name": "isolated"})
    assert baseline_model_count(star, clients, "isolated") == 3
    assert baseline_model_count(alone, clients, "isolated") == 0
    assert baseline_model_count(alone, clients, "random") == 1


def test_knn_after_rounds_measures_each_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 5 rounds, 2 and 4 are measured, and the last: 3 times 4 models at 2 s each."""
    monkeypatch.setattr("fedssl.runs.time_estimate.training_speed", lambda federation: 1e12)
    monkeypatch.setattr(
        "fedssl.runs.time_estimate.probe_seconds", lambda *_: ProbeSeconds(10.0, 2.0)
    )
    inputs = _estimate_inputs(rounds=5, probe__every=2, topology__name="cycle")
    assert estimate_run(*inputs, tmp_path, 0).training == pytest.approx(24.0, abs=0.01)


def test_where_steps_cannot_be_tried_training_is_estimated_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on CUDA: nothing is announced, and the time left is known after the first round."""
    monkeypatch.setattr("fedssl.runs.time_estimate.training_speed", lambda federation: None)
    monkeypatch.setattr("fedssl.runs.time_left.SECONDS_BEFORE_ESTIMATE", 0.0)
    fedssl.run(make_experiment(), tmp_path / "run", "cpu", dataset=bright_dataset())
    lines = capsys.readouterr().err.splitlines()
    (estimate,) = [n for n, line in enumerate(lines) if ": estimated time: about " in line]
    assert ": round 1/" in lines[estimate - 1]


def test_baselines_that_are_trained_take_no_time(tmp_path: Path) -> None:
    experiment = make_experiment(probe__baselines=None)
    run = fedssl.run(experiment, tmp_path / "run", "cpu", dataset=bright_dataset(), quiet=True)
    assert estimate_run(*_estimate_inputs(), run.dir, 0).later.baselines == 0.0


def test_without_labels_only_training_is_estimated(tmp_path: Path) -> None:
    federation, _ = _estimate_inputs()
    data = bright_dataset()._replace(test=None)
    evaluation = Evaluation(federation.experiment, data, CPU)
    assert estimate_run(federation, evaluation, tmp_path, 0).later == (0.0, 0.0, False, "", None, 1)


def test_a_run_prints_its_estimate_before_the_first_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quiet run makes no trial, and has the same weights."""
    experiment = make_experiment(probe__baselines=None)
    weights = []
    for quiet in (False, True):
        folder = tmp_path / f"{quiet}"
        fedssl.run(experiment, folder, "cpu", dataset=bright_dataset(), quiet=quiet)
        weights.append(load_file(folder / "backbone.safetensors"))
    lines = capsys.readouterr().err.splitlines()
    (estimate,) = [n for n, line in enumerate(lines) if "estimated time" in line]
    first = next(n for n, line in enumerate(lines) if ": round 1/" in line)
    assert estimate < first
    assert re.search(
        r": estimated time: about \d+ s: training \d+ s, baselines \d+ s, measuring \d+ s$",
        lines[estimate],
    )
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name])
