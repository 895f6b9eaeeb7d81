"""Track a run with MLflow: by default in a database next to the run directory."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fedssl.runs.callbacks import RunInfo
from fedssl.runs.trackers.numbers import flat_settings
from fedssl.runs.trackers.state import State
from fedssl.runs.trackers.tracker import Tracker, run_name, tags_of

DATABASE = "mlflow.db"
FILE_STORE = "mlruns"
ARTIFACTS = "mlartifacts"
EXPERIMENT = "fedssl"  # groups the runs, unless MLFLOW_EXPERIMENT_NAME is set
MAX_METRICS = 1000  # of one request
MAX_PARAMS = 100  # of one request
MAX_VALUE = 500  # characters of a parameter
EVERY_ROUND = "seconds"  # a number that every round has


class MLflowTracker(Tracker):
    """Sends rounds to MLflow, whose metrics cannot be removed: each round is sent once."""

    _client: Any
    _run: str

    def open(self, run: RunInfo, state: State) -> State:
        """Create a run in MLflow, or continue the one that was recorded."""
        uri, default = tracking_uri(run.folder)
        self._uri = uri
        # Before the import: fedssl connects to no host unless the user configured one.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        if default:
            _prepare(uri)
        from mlflow import MlflowClient

        with _quiet():
            self._client = MlflowClient(uri)
            sent = 0
            if state.run is not None and state.place == uri and self._resume(state.run):
                self._run = state.run
                sent = self._last_round()
            else:
                self._run = self._create(run, default)
        self._send_settings(run)
        return state._replace(rounds=sent, run=self._run, place=uri)

    def _create(self, run: RunInfo, default: bool) -> str:
        """Return the id of a new run."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            place = None
            if default:
                place = (run.folder.resolve().parent / ARTIFACTS).as_uri()
            identity = self._client.create_experiment(name, artifact_location=place)
        else:
            identity = experiment.experiment_id
        tags = {f"fedssl.{key}": value for key, value in tags_of(run.experiment).items()}
        tags["fedssl.run_directory"] = str(run.folder.resolve())
        created = self._client.create_run(identity, run_name=run_name(run), tags=tags)
        return str(created.info.run_id)

    def _resume(self, identity: str) -> bool:
        """Return whether a run exists, and mark it as running."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.update_run(identity, status="RUNNING")
        except MlflowException as problem:
            if problem.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        return True

    def _last_round(self) -> int:
        """Return the last round that the run in MLflow has."""
        history = self._client.get_metric_history(self._run, EVERY_ROUND)
        return max((metric.step for metric in history), default=0)

    def _send_settings(self, run: RunInfo) -> None:
        """Send settings as parameters; those that changed since, which MLflow forbids, as tags."""
        from mlflow.entities import Param

        present = self._client.get_run(self._run).data.params
        missing = []
        for key, value in flat_settings(run.experiment.to_dict()).items():
            text = str(value)[:MAX_VALUE]
            if key not in present:
                missing.append(Param(key, text))
            elif present[key] != text:
                self._client.set_tag(self._run, f"fedssl.changed.{key}", text)
        for part in _parts(missing, MAX_PARAMS):
            self._client.log_batch(self._run, params=part)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send the numbers of a round."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        # The number that marks a round as sent is the last one.
        order = sorted(numbers, key=lambda name: name == EVERY_ROUND)
        metrics = [Metric(name, numbers[name], now, step) for name in order]
        for part in _parts(metrics, MAX_METRICS):
            self._client.log_batch(self._run, metrics=part)

    def log_results(self, step: int, numbers: Mapping[str, float], verdict: str) -> None:
        """Send the final numbers, and the verdict as a tag."""
        if verdict:
            self._client.set_tag(self._run, "fedssl.verdict", verdict)
        self.log(step, numbers)

    def disconnect(self) -> None:
        """Mark the run as finished, or as stopped if its results were not sent."""
        self._client.set_terminated(self._run, "FINISHED" if self.ended else "KILLED")

    def location(self) -> str:
        """Return the tracking URI."""
        return f"{self._uri} (mlflow ui --backend-store-uri {self._uri})"


def tracking_uri(folder: Path) -> tuple[str, bool]:
    """Return the tracking URI, and whether it is the default: a store next to the run directory.

    The default is a SQLite database, which needs SQLAlchemy and Alembic: mlflow-skinny comes
    without them, and then files are used.
    """
    configured = os.environ.get("MLFLOW_TRACKING_URI")
    if configured:
        return configured, False
    parent = folder.resolve().parent
    if find_spec("sqlalchemy") is None or find_spec("alembic") is None:
        return (parent / FILE_STORE).as_uri(), True
    return f"sqlite:///{parent / DATABASE}", True


def _prepare(uri: str) -> None:
    """Create the default store with access for its owner only."""
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).touch(mode=0o600)
        return
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    Path(unquote(uri.removeprefix("file://"))).mkdir(mode=0o700, exist_ok=True)


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the log lines about a new database."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
