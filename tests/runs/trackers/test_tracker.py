"""Which rounds a tracker sends, over interruptions and failures: with a tracker in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from error_messages import raises
from factories import bright_dataset, interrupted_in_round, make_experiment

import fedssl
from fedssl.core.console import ignore_message
from fedssl.core.errors import ConfigError
from fedssl.runs.callbacks import RunInfo
from fedssl.runs.local import Interrupted
from fedssl.runs.run_seeds import run_seeds
from fedssl.runs.trackers import TRACKERS, _Choice, make_trackers, tracker_names
from fedssl.runs.trackers.state import NAME, State
from fedssl.runs.trackers.tracker import Tracker, run_name

SEEDED = """
rounds = 1
clients = 2
data = "fashion-mini"
partition = {name = "iid", share = 0.01}
method = {name = "simclr", backbone = "cnn", hidden = 8, dim = 4}
train = {batch = 16}
probe = {every = 0, linear = false, baselines = []}
"""


class MemoryTracker(Tracker):
    """Keeps what was sent; rounds that are sent twice are there twice."""

    def __init__(self, fails_at: int = 0) -> None:
        super().__init__("memory", ignore_message)
        self.sent: list[tuple[int, Mapping[str, float]]] = []
        self.results: list[tuple[int, Mapping[str, float], str]] = []
        self.connections = 0
        self.fails_at = fails_at

    def open(self, run: RunInfo, state: State) -> State:
        self.connections += 1
        return state._replace(run="id")

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if step == self.fails_at:
            raise ConnectionError("no route\nto host")
        self.sent.append((step, numbers))

    def log_results(self, step: int, numbers: Mapping[str, float], verdict: str) -> None:
        self.results.append((step, numbers, verdict))

    def disconnect(self) -> None:
        self.connections -= 1

    def location(self) -> str:
        return "here"

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.sent]


def _run(folder: Path, *trackers: Tracker, **changes: object) -> fedssl.Run:
    experiment = make_experiment(rounds=3, probe={"every": 1})
    return fedssl.run(
        experiment,
        folder,
        "cpu",
        dataset=bright_dataset(),
        quiet=True,
        callbacks=trackers,
        **changes,
    )


def _state(folder: Path) -> State:
    return State(**json.loads((folder / NAME).read_text())["memory"])


def test_every_round_and_the_results_are_sent_once(tmp_path: Path) -> None:
    tracker = MemoryTracker()
    run = _run(tmp_path / "run", tracker)
    assert tracker.steps == [1, 2, 3]
    assert [numbers["knn"] for _, numbers in tracker.sent] == [line["knn"] for line in run.rounds]
    assert [step for step, _, _ in tracker.results] == [3]
    assert tracker.results[0][1]["final/knn"] == run.results["table"]["this run"]["knn"]["mean"]
    assert tracker.results[0][2] == run.results["verdict"]["sentence"]
    assert tracker.connections == 0
    assert _state(run.dir).rounds == 3
    assert _state(run.dir).run == "id"


def test_a_finished_run_is_not_opened_again(tmp_path: Path) -> None:
    _run(tmp_path / "run", MemoryTracker())
    again = MemoryTracker()
    _run(tmp_path / "run", again)
    assert (again.sent, again.results, again.connections) == ([], [], 0)


def test_a_round_that_is_trained_again_is_not_sent_again(tmp_path: Path) -> None:
    """Round 2 is sent, but the only checkpoint is that before the first round."""
    rare = {"set": {"train.checkpoint_every": 1000}}
    first = MemoryTracker()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedssl.runs.session.Session._close", lambda *values: None)
        with interrupted_in_round(3), pytest.raises(Interrupted):
            _run(tmp_path / "run", first, **rare)
    assert first.steps == [1, 2]
    second = MemoryTracker()
    run = _run(tmp_path / "run", second, **rare)
    assert second.steps == [3]
    assert [line["round"] for line in run.rounds] == [1, 2, 3]


def test_rounds_of_a_start_without_the_tracker_are_sent_from_the_log(tmp_path: Path) -> None:
    with interrupted_in_round(3), pytest.raises(Interrupted):
        _run(tmp_path / "run")
    tracker = MemoryTracker()
    run = _run(tmp_path / "run", tracker)
    assert tracker.steps == [1, 2, 3]
    assert [numbers["loss"] for _, numbers in tracker.sent] == [line["loss"] for line in run.rounds]


def test_a_run_that_was_finished_without_the_tracker_is_sent_from_the_log(tmp_path: Path) -> None:
    _run(tmp_path / "run")
    tracker = MemoryTracker()
    _run(tmp_path / "run", tracker)
    assert tracker.steps == [1, 2, 3]
    assert len(tracker.results) == 1


def test_an_extended_run_continues_and_sends_its_new_results(tmp_path: Path) -> None:
    _run(tmp_path / "run", MemoryTracker())
    tracker = MemoryTracker()
    _run(tmp_path / "run", tracker, rounds=4)
    assert tracker.steps == [4]
    assert [step for step, _, _ in tracker.results] == [4]


def test_a_failure_is_one_warning_and_the_next_start_sends_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = MemoryTracker(fails_at=2)
    run = _run(tmp_path / "run", failing)
    assert len(run.rounds) == 3
    assert run.results["rounds"] == 3
    assert (failing.steps, failing.results, failing.connections) == ([1], [], 0)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "tracking" in line] == [
        "tracking with memory failed (no route). The run continues without it; the next start of "
        "this run with memory sends what is missing"
    ]
    tracker = MemoryTracker()
    _run(tmp_path / "run", tracker)
    assert tracker.steps == [2, 3]
    assert len(tracker.results) == 1


def test_a_damaged_state_begins_anew(tmp_path: Path) -> None:
    _run(tmp_path / "run", MemoryTracker())
    (tmp_path / "run" / NAME).write_text("{")
    tracker = MemoryTracker()
    _run(tmp_path / "run", tracker)
    assert tracker.steps == [1, 2, 3]


def test_each_seed_has_its_own_run_in_a_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[MemoryTracker] = []

    def make(track: object, notify: object) -> list[MemoryTracker]:
        assert track == ["memory"]
        made.append(MemoryTracker())
        return [made[-1]]

    monkeypatch.setattr("fedssl.runs.run.make_trackers", make)
    (tmp_path / "mine.toml").write_text(SEEDED)
    runs = run_seeds(
        tmp_path / "mine.toml", 2, tmp_path / "out", "cpu", quiet=True, track=["memory"]
    )
    assert [tracker.steps for tracker in made] == [[1], [1]]
    assert [_state(run.dir).rounds for run in runs] == [1, 1]


def test_names_of_trackers() -> None:
    assert tracker_names("") == tracker_names([]) == []
    names = ["wandb, tensorboard", "tensorboard", "mlflow,"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedssl.runs.trackers.find_spec", lambda name: name)
        assert tracker_names(names) == ["wandb", "tensorboard", "mlflow"]


def test_an_unknown_or_missing_tracker_is_an_error_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TRACKERS, "mlflow", _Choice("none", "None", "no_such_package"))
    for track in ("tensorbord", ["mlflow"]):
        with raises(ConfigError):
            _run(tmp_path / "run", track=track)
    with raises(ConfigError):
        make_trackers("comet", ignore_message)
    assert not (tmp_path / "run").exists()


def test_a_run_is_named_after_its_directory(tmp_path: Path) -> None:
    experiment = make_experiment()
    folders = {"demo": "demo", "demo-byol": "demo-byol", "seed1": "demo/seed1"}
    for folder, name in folders.items():
        assert run_name(RunInfo(tmp_path / folder, "demo", experiment, 0)) == name
