"""Offline runs of Weights & Biases, read from their transaction logs."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from error_messages import raises
from offline_runs import interrupted_then_finished, start

from fedssl.core.errors import ConfigError
from fedssl.runs.trackers.wandb_log import last_offline_step

pytestmark = pytest.mark.oracle
wandb = pytest.importorskip("wandb")

BLOCK = 32768  # bytes
HEADER = 7  # bytes at the start of the file, and of each chunk
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4  # kinds of chunks


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT", "WANDB_RUN_GROUP"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))


def _records(path: Path) -> Iterator[Any]:
    """Yield the records of a log in LevelDB's format, whose first bytes name the format."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    assert data[:4] == b":W&B"
    position = HEADER
    parts = b""
    while position + HEADER <= len(data):
        left_in_block = BLOCK - position % BLOCK
        if left_in_block < HEADER:
            position += left_in_block
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + HEADER])
        position += HEADER
        parts += data[position : position + length]
        position += length
        if kind in (FULL, LAST):
            yield Record.FromString(parts)
            parts = b""


def _logs(folder: Path) -> list[Path]:
    return sorted((folder / "wandb").glob("offline-run-*/*.wandb"))


def _history(folder: Path) -> list[dict[str, Any]]:
    steps = []
    for path in _logs(folder):
        for record in _records(path):
            if record.WhichOneof("record_type") == "history":
                steps.append(_values(record.history.item))
    return steps


def _values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_a_resumed_run_has_every_round_once_under_one_id(tmp_path: Path) -> None:
    run = interrupted_then_finished(tmp_path / "run", "wandb")
    history = _history(run.dir)
    assert [items["_step"] for items in history] == [1, 2, 3, 4]
    # On a CPU, round 3 has the same loss in both attempts.
    assert [items["loss"] for items in history] == [line["loss"] for line in run.rounds]
    assert [items["_step"] for items in history if "knn" in items] == [2, 4]
    identity = json.loads((run.dir / "trackers.json").read_text())["wandb"]["run"]
    assert {path.name for path in _logs(run.dir)} == {f"run-{identity}.wandb"}


KILLED = """
import os, signal, sys
from pathlib import Path
import fedssl
from offline_runs import start

class Kill(fedssl.Callback):
    def on_round(self, run, record):
        if record["round"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)

start(Path(sys.argv[1]), "wandb", callbacks=[Kill()])
"""


def test_rounds_that_a_killed_process_did_not_write_are_sent_again(tmp_path: Path) -> None:
    """The library writes every second, so that most of the three rounds are lost."""
    tests = Path(__file__).parents[2]
    paths = [str(tests.parent), str(tests), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("WANDB_SERVICE", None)  # the background process of this one
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "run")],
        env=environment,
    )
    assert done.returncode == -signal.SIGKILL
    run = start(tmp_path / "run", "wandb")
    assert [items["_step"] for items in _history(run.dir)] == [1, 2, 3, 4]
    assert [items["loss"] for items in _history(run.dir)] == [line["loss"] for line in run.rounds]


def test_a_log_of_another_format_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "offline-run-1-id"
    folder.mkdir()
    (folder / "run-id.wandb").write_bytes(b"something else")
    assert last_offline_step(tmp_path, "id") is None
    assert last_offline_step(tmp_path, "other") is None


def test_settings_results_and_nothing_of_the_machine_are_written(tmp_path: Path) -> None:
    run = start(tmp_path / "run", "wandb", rounds=1)
    records = list(_records(_logs(run.dir)[0]))
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    for record in records:
        kind = record.WhichOneof("record_type")
        if kind == "run":
            assert record.run.display_name == "fedavg-byol-images/run"
            assert record.run.project == "fedssl"
        if kind in ("run", "config"):
            changes = record.run.config if kind == "run" else record.config
            config |= _values(changes.update)
        if kind == "summary":
            summary |= _values(record.summary.update)
        assert kind not in ("environment", "stats", "output", "output_raw")
    assert config["train"] == run.experiment.to_dict()["train"]
    assert summary["final/knn"] == run.results["table"]["this run"]["knn"]["mean"]
    assert summary["verdict"] == run.results["verdict"]["sentence"]


def test_a_server_without_a_key_is_an_error_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    with raises(ConfigError):
        start(tmp_path / "run", "wandb")
    assert not (tmp_path / "run").exists()
