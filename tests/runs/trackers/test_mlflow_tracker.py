"""Runs in MLflow's local stores, as its own client reads them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from offline_runs import interrupted_then_finished, start

import fedssl
from fedssl.runs.trackers.mlflow_tracker import tracking_uri

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # of SQLAlchemy and Alembic
]
mlflow = pytest.importorskip("mlflow")


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(params=["database", "files"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the default store with SQLAlchemy, or that without it."""
    if request.param == "files":
        monkeypatch.setattr(
            "fedssl.runs.trackers.mlflow_tracker.find_spec",
            lambda name: None if name == "sqlalchemy" else find_spec(name),
        )
    return str(request.param)


def _client_and_id(run: fedssl.Run) -> tuple[Any, str]:
    state = json.loads((run.dir / "trackers.json").read_text())["mlflow"]
    assert state["place"] == tracking_uri(run.dir)[0]
    return mlflow.MlflowClient(state["place"]), state["run"]


def _history(client: Any, identity: str, key: str) -> list[tuple[int, float]]:
    return sorted((point.step, point.value) for point in client.get_metric_history(identity, key))


def test_a_resumed_run_has_every_round_once(tmp_path: Path, store: str) -> None:
    run = interrupted_then_finished(tmp_path / "run", "mlflow")
    client, identity = _client_and_id(run)
    # On a CPU, round 3 has the same loss in both attempts.
    expected = [(line["round"], line["loss"]) for line in run.rounds]
    assert _history(client, identity, "loss") == expected
    assert [step for step, _ in _history(client, identity, "seconds")] == [1, 2, 3, 4]
    assert [step for step, _ in _history(client, identity, "knn")] == [2, 4]
    final = run.results["table"]["this run"]["knn"]["mean"]
    assert _history(client, identity, "final/knn") == [(4, final)]
    found = client.get_run(identity)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "fedavg-byol-images/run"
    assert found.data.params["train.lr"] == str(run.experiment.train.lr)
    assert found.data.tags["fedssl.verdict"] == run.results["verdict"]["sentence"]
    assert (tmp_path / ("mlruns" if store == "files" else "mlflow.db")).exists()
    experiment = client.get_experiment_by_name("fedssl")
    assert len(client.search_runs([experiment.experiment_id])) == 1


def test_an_extended_run_continues_and_names_the_changed_setting(tmp_path: Path) -> None:
    start(tmp_path / "run", "mlflow", rounds=1)
    run = start(tmp_path / "run", "mlflow", rounds=2)
    client, identity = _client_and_id(run)
    assert [step for step, _ in _history(client, identity, "seconds")] == [1, 2]
    assert client.get_run(identity).data.params["rounds"] == "1"
    assert client.get_run(identity).data.tags["fedssl.changed.rounds"] == "2"


def test_paths_may_have_spaces_and_accents(tmp_path: Path, store: str) -> None:
    run = start(tmp_path / "année 1" / "run", "mlflow", rounds=1)
    client, identity = _client_and_id(run)
    assert len(_history(client, identity, "loss")) == 1


def test_the_default_database_is_private(tmp_path: Path) -> None:
    start(tmp_path / "run", "mlflow", rounds=1)
    assert (tmp_path / "mlflow.db").stat().st_mode & 0o077 == 0


def test_a_configured_store_is_used_and_sent_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that began in the default store has a new run in the other one."""
    start(tmp_path / "run", "mlflow", rounds=1)
    uri = f"sqlite:///{tmp_path / 'other.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    run = start(tmp_path / "run", "mlflow", rounds=2)
    client, identity = _client_and_id(run)
    assert client.tracking_uri == uri
    assert [step for step, _ in _history(client, identity, "seconds")] == [1, 2]
