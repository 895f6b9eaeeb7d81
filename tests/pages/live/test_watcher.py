"""Reading a run directory that is missing, in training, damaged, resumed or prolonged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from watched_runs import round_line, set_time, write_run

from fedssl.core.files import checked_lines
from fedssl.core.files.lock import locked
from fedssl.pages.live.run_facts import Facts, read_facts, read_signs
from fedssl.pages.live.watcher import RELEASE_SECONDS, Watcher
from fedssl.runs.live_file import LiveClient, LiveState, write_live


def test_a_directory_that_appears_later(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path / "run")
    assert watcher.poll().head["detail"] == "The directory does not exist yet."
    write_run(tmp_path / "run", round_line(1))
    view = watcher.poll()
    assert (view.head["state"], view.head["finished"]) == ("stopped", 1)
    assert view.rows.keys() == {"a", "b"}
    assert [chart["name"] for chart in view.charts] == ["loss", "divergence", "effective_rank"]


def test_a_run_that_is_trained_stops_and_resumes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", round_line(1), round_line(2))
    watcher = Watcher(folder)
    with locked(folder):
        live = LiveState("training", 0.0, 0.0, round=3, rounds=4, clients={"a": LiveClient()})
        changed = (folder / "run.lock").stat().st_mtime
        write_live(folder, live._replace(changed=changed + 1.0))
        set_time(folder / "live.json", changed + 1.0)
        view = watcher.poll(changed + 1.0)
        assert (view.head["state"], view.rows["a"]["state"]) == ("training", "waiting")
    soon = changed + 1.0 + RELEASE_SECONDS / 2
    assert watcher.poll(soon).head["state"] == "training"  # it may measure next
    assert watcher.poll(soon + RELEASE_SECONDS).head["state"] == "died"
    checked_lines.truncate(folder / "rounds.jsonl", 1)
    view = watcher.poll()
    assert view.head["finished"] == 1
    assert view.charts[0]["x"] == [1]


def test_looking_changes_nothing(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", round_line(1), results={"rounds": 4})
    before = {path: path.stat() for path in folder.iterdir()}
    Watcher(folder).poll()
    assert {path: path.stat() for path in folder.iterdir()} == before


@pytest.mark.rows("P11")
@pytest.mark.parametrize(
    "name",
    [
        "experiment.toml",
        "rounds.jsonl",
        "results.json",
        "live.json",
        "flower.json",
        "integrity.jsonl",
    ],
)
def test_damaged_files_are_no_errors(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "run", round_line(1), results={"rounds": 4})
    for damage in (b"", b"\xff\xfe", b"[]", b'{"rounds": {}}\n', b"[" * 100_000):
        (folder / name).write_bytes(damage)
        view = Watcher(folder).poll()
        assert view.head["title"] == "run"


def test_a_folder_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/rounds.jsonl").mkdir()
    head = Watcher(tmp_path / "run").poll().head
    assert head["label"] == "Unreadable"
    assert "rounds.jsonl" in head["detail"]


def test_facts_of_a_private_run_on_flower(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    text = (folder / "experiment.toml").read_text()
    (folder / "experiment.toml").write_text(f"{text}[privacy]\nclip = 1.0\nepsilon = 8.0\n")
    (folder / "flower.json").write_text(json.dumps({"clients": ["a", "b"]}))
    assert read_facts(folder) == Facts(
        "fedema × byol", 4, epsilon=8.0, private=True, on_flower=True, clients=("a", "b")
    )


def test_the_baseline_in_training_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", *(round_line(number) for number in range(1, 5)))
    inner = write_run(folder / "isolated")
    with locked(folder), locked(inner):
        write_live(inner, LiveState("training", 0.0, 0.0, round=3, rounds=4))
        assert read_signs(folder).baseline == "isolated, round 3 of 4"
        detail = Watcher(folder).poll().head["detail"]
    assert detail == (
        "Training is done; the baseline isolated, round 3 of 4, is trained for comparison."
    )


def test_a_watcher_imports_no_torch() -> None:
    """A page next to a run should need little memory, and start at once."""
    script = "import sys, fedssl.pages.live.server as s; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "False\n"
