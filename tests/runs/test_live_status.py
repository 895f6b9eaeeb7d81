"""live.json: what a run records about the round that is under way."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import bright_dataset, interrupted_in_round, make_experiment
from hypothesis import given
from hypothesis import strategies as st

import fedssl
from fedssl.core.errors import RunError
from fedssl.engine.uploads.records import Reply
from fedssl.runs import live_status
from fedssl.runs.live_file import (
    NAME,
    LiveClient,
    LiveState,
    LiveWarning,
    read_live,
    write_live,
)
from fedssl.runs.live_status import LiveStatus
from fedssl.runs.session import Interrupted
from fedssl.training.step_count import StepCount
from fedssl.training.trainer import Metrics

METRICS = Metrics(loss=1.0, steps=5, images=40, seconds=2.0, embedding_std=1.0, effective_rank=3.0)


def _replied(client: str) -> Reply:
    return Reply(client, 8, {}, METRICS)


def _status(folder: Path, rounds: int = 3, **options: Any) -> LiveStatus:
    return LiveStatus(folder, rounds, interval=0.01, **options)


def _await(folder: Path, accept: Any) -> LiveState:
    """Return the contents of the file once they are accepted."""
    for _ in range(500):
        state = read_live(folder)
        if state is not None and accept(state):
            return state
        time.sleep(0.01)
    raise AssertionError(f"not accepted in time: {state}")


# -- the file --

STATE = LiveState(
    "training",
    started=1.0,
    changed=2.0,
    round=2,
    rounds=4,
    clients={"a": LiveClient("training", 1.5, 3, 10, 24), "ö": LiveClient("failed", reason="no")},
    connected={"a": 1.0},
    warnings=(LiveWarning(1, "collapse"),),
)


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_live(tmp_path, STATE)
    assert read_live(tmp_path) == STATE
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_folder_without_the_file_has_no_state(tmp_path: Path) -> None:
    assert read_live(tmp_path) is None
    assert read_live(tmp_path / "missing") is None


@pytest.mark.rows("P11")
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_file_with_a_changed_byte_is_ignored(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    write_live(folder, STATE)
    data = bytearray((folder / NAME).read_bytes())
    place %= len(data)
    changed = data[place] != byte
    data[place] = byte
    (folder / NAME).write_bytes(bytes(data))
    assert read_live(folder) == (None if changed else STATE)


def test_a_file_of_another_program_is_ignored(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", "[" * 100_000, '{"body": "{}", "sha256": ""}'):
        (tmp_path / NAME).write_text(text)
        assert read_live(tmp_path) is None


# -- the events of a round --


def test_clients_of_a_round_go_from_waiting_to_training_to_replied(tmp_path: Path) -> None:
    trainer: Any = SimpleNamespace(step_count=StepCount())
    with _status(tmp_path) as status:
        status.begin_round(1, ["a", "b", "c"])
        status.start_client("a", trainer)
        trainer.step_count.begin(planned=10, images_per_step=8)
        trainer.step_count.done = 4
        status.finish_client(_replied("b"))
        status.finish_client(Reply("c", 0, None, None, error="no\nimages"))
        state = _await(tmp_path, lambda state: state.replied == 2)
    assert (state.phase, state.round, state.rounds) == ("training", 2, 3)
    assert state.clients["a"][0] == "training"
    assert state.clients["a"][2:] == (4, 10, 32, None)
    assert state.clients["b"][2:] == (5, 5, 40, None)
    assert (state.clients["c"].state, state.clients["c"].reason) == ("failed", "no\\nimages")


def test_a_step_changes_the_time_of_the_status(tmp_path: Path) -> None:
    trainer: Any = SimpleNamespace(step_count=StepCount())
    with _status(tmp_path) as status:
        status.begin_round(0, ["a"])
        status.start_client("a", trainer)
        before = _await(tmp_path, lambda state: "a" in state.clients)
        trainer.step_count.done = 1
        after = _await(tmp_path, lambda state: state.clients["a"].steps == 1)
    assert after.changed > before.changed


def test_the_file_is_removed_after_the_last_round_and_kept_before_it(tmp_path: Path) -> None:
    with _status(tmp_path, rounds=2) as status:
        status.begin_round(0, ["a"])
    state = read_live(tmp_path)
    assert state is not None
    assert state.phase == "trained"  # early: the budget of a private run was spent
    with _status(tmp_path, rounds=2) as status:
        status.begin_round(1, ["a"])
    assert not (tmp_path / NAME).exists()


def test_the_reason_of_a_failure_is_recorded_if_it_is_for_users(tmp_path: Path) -> None:
    for problem, reason in (
        (RunError("the disk is full"), "the disk is full"),
        (ValueError("pixels of scan-7.png"), "ValueError"),
    ):
        with pytest.raises(type(problem)), _status(tmp_path):
            raise problem
        state = read_live(tmp_path)
        assert state is not None
        assert (state.phase, state.reason) == ("failed", reason)


def test_a_private_round_has_nothing_of_single_clients(tmp_path: Path) -> None:
    """Only the plan, which is public, and how many are done."""
    trainer: Any = SimpleNamespace(step_count=StepCount())
    with _status(tmp_path, private=True) as status:
        status.begin_round(0, ["a", "b"])
        status.start_client("a", trainer)
        trainer.step_count.done = 3
        status.finish_client(Reply("a", 0, None, None, error="its images are strange"))
        state = _await(tmp_path, lambda state: state.replied == 1)
    assert state.clients == {"a": LiveClient("training"), "b": LiveClient("training")}
    assert "strange" not in (tmp_path / NAME).read_text()


def test_only_the_last_warnings_are_kept(tmp_path: Path) -> None:
    with _status(tmp_path) as status:
        for number in range(live_status.MAX_WARNINGS + 2):
            status.warn(str(number))
        state = _await(tmp_path, lambda state: state.warnings[-1:] == (LiveWarning(0, "21"),))
    assert [warning.text for warning in state.warnings] == [str(n) for n in range(2, 22)]


def test_a_file_that_cannot_be_written_disturbs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()

    def full(folder: Path, state: LiveState) -> None:
        tried.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live_status, "write_live", full)
    with _status(tmp_path) as status:
        status.begin_round(0, ["a"])
        assert tried.wait(10)
        status.finish_client(_replied("a"))
    assert list(tmp_path.iterdir()) == []


# -- runs --


def test_a_run_records_its_rounds_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round: its clients, their steps (16 images in batches of 8), then the measurement."""
    sampled: list[LiveState] = []
    measure = LiveStatus.measure

    def sample(self: LiveStatus) -> None:
        sampled.append(self._sample())
        measure(self)

    monkeypatch.setattr(LiveStatus, "measure", sample)
    experiment = make_experiment(method={"hidden": 16, "dim": 8}, rounds=2)
    run = fedssl.run(experiment, tmp_path / "run", "cpu", dataset=bright_dataset(), quiet=True)
    assert [state.round for state in sampled] == [1, 2]
    steps = {line["client"]: line["steps"] for line in run.rounds[0]["clients"]}
    for state in sampled:
        assert state.replied == len(steps)
        assert {name: client.steps for name, client in state.clients.items()} == steps
        assert {client.state for client in state.clients.values()} == {"replied"}
    assert not (run.dir / NAME).exists()


def test_an_interrupted_run_is_recorded_as_stopped_and_resumes(tmp_path: Path) -> None:
    experiment = make_experiment(method={"hidden": 16, "dim": 8}, rounds=2)
    arguments: Any = (experiment, tmp_path / "run", "cpu")
    with interrupted_in_round(1), pytest.raises(Interrupted):
        fedssl.run(*arguments, dataset=bright_dataset(), quiet=True)
    state = read_live(tmp_path / "run")
    assert state is not None
    assert (state.phase, state.round) == ("stopped", 1)
    (tmp_path / "run" / NAME).write_bytes(b"\xff")
    run = fedssl.run(*arguments, dataset=bright_dataset(), quiet=True)
    assert len(run.rounds) == 2
    assert not (run.dir / NAME).exists()
