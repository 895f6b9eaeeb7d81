"""Callbacks of `fedssl.run`: when they are called, with what, and what an error in one does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from error_messages import raises
from factories import bright_dataset, interrupted_in_round, make_experiment

import fedssl
from fedssl.core.errors import ConfigError
from fedssl.runs.callbacks import Callback, Callbacks, RunInfo
from fedssl.runs.local import Interrupted

MEASURED = make_experiment(probe={"every": 1})


class Calls(Callback):
    """Lists the calls; raises `problem` in one of them."""

    def __init__(self, fails_in: str = "", problem: Exception | None = None) -> None:
        self.calls: list[Any] = []
        self._fails_in = fails_in
        self._problem = problem

    def _called(self, method: str, *values: Any) -> None:
        self.calls.append((method, *values))
        if method == self._fails_in and self._problem is not None:
            raise self._problem

    def on_start(self, run: RunInfo) -> None:
        self._called("start", run.finished, run.experiment.rounds, run.title, run.folder.name)

    def on_round(self, run: RunInfo, record: Mapping[str, Any]) -> None:
        self._called("round", dict(record))

    def on_end(self, run: RunInfo, results: Mapping[str, Any]) -> None:
        self._called("end", dict(results))

    def close(self) -> None:
        self._called("close")

    @property
    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


def _run(folder: Path, *callbacks: Callback, **options: Any) -> fedssl.Run:
    return fedssl.run(
        MEASURED,
        folder,
        "cpu",
        dataset=bright_dataset(),
        quiet=True,
        callbacks=callbacks,
        **options,
    )


def test_a_callback_receives_the_records_of_the_log_and_the_results(tmp_path: Path) -> None:
    calls = Calls()
    run = _run(tmp_path / "run", calls)
    assert calls.names == ["start", "round", "round", "end", "close"]
    assert calls.calls[0][1:] == (0, 2, "fedavg-byol-images", "run")
    assert [call[1] for call in calls.calls[1:3]] == run.rounds
    assert calls.calls[3][1] == run.results
    assert run.results["table"]


def test_a_finished_run_calls_start_end_and_close_only(tmp_path: Path) -> None:
    _run(tmp_path / "run")
    calls = Calls()
    run = _run(tmp_path / "run", calls)
    assert calls.names == ["start", "end", "close"]
    assert calls.calls[0][1] == 2  # finished rounds
    assert calls.calls[1][1] == run.results


def test_a_resumed_run_calls_for_its_own_rounds_only(tmp_path: Path) -> None:
    first = Calls()
    with interrupted_in_round(2), pytest.raises(Interrupted):
        _run(tmp_path / "run", first)
    assert first.names == ["start", "round", "close"]  # interrupted before the second
    second = Calls()
    _run(tmp_path / "run", second)
    assert second.names == ["start", "round", "end", "close"]
    assert second.calls[0][1] == 1
    assert second.calls[1][1]["round"] == 2


@pytest.mark.parametrize("problem", [RuntimeError("out of luck"), OSError("no"), ValueError("x")])
def test_an_error_in_a_callback_ends_the_run_after_saving_the_round(
    tmp_path: Path, problem: Exception
) -> None:
    """With a minute between checkpoints, round 1 is saved only because the run ends."""
    failing = Calls("round", problem)
    other = Calls()
    with pytest.raises(type(problem)) as raised:
        _run(tmp_path / "run", failing, other, set={"train.checkpoint_every": 60})
    assert raised.value is problem
    assert problem.__notes__ == [
        "raised by the callback Calls.on_round; finished rounds are saved, and the same call "
        "resumes the run"
    ]
    assert "on_round" in [entry.name for entry in raised.traceback]
    assert failing.names == ["start", "round", "close"]
    assert other.names == ["start", "close"]
    again = Calls()
    _run(tmp_path / "run", again)
    assert again.calls[0][1] == 1


@pytest.mark.parametrize("method", ["start", "end", "close"])
def test_errors_at_the_start_and_the_end_close_every_started_callback(
    tmp_path: Path, method: str
) -> None:
    problem = ValueError("broken")
    first, failing, last = Calls(), Calls(method, problem), Calls()
    with pytest.raises(ValueError, match="broken") as raised:
        _run(tmp_path / "run", first, failing, last)
    assert raised.value is problem
    assert first.names[-1] == failing.names[-1] == "close"
    assert ("close" in last.names) == (method != "start")


def test_callbacks_are_called_in_order_and_closed_in_reverse(tmp_path: Path) -> None:
    order: list[str] = []

    class Named(Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_start(self, run: RunInfo) -> None:
            order.append(self.name)

        def close(self) -> None:
            order.append(f"close {self.name}")

    callbacks = Callbacks([Named("a"), Named("b")])
    callbacks.start(RunInfo(tmp_path, "title", MEASURED, 0))
    callbacks.close()
    callbacks.close()  # closes nothing twice
    assert order == ["a", "b", "close b", "close a"]


def test_callbacks_change_no_weight(tmp_path: Path) -> None:
    _run(tmp_path / "with", Calls())
    _run(tmp_path / "without")
    files = [tmp_path / name / "backbone.safetensors" for name in ("with", "without")]
    assert files[0].read_bytes() == files[1].read_bytes()


class Misspelled(Callback):
    def on_rounds(self) -> None: ...


@pytest.mark.parametrize(
    "callback", [print, Calls, Misspelled()], ids=["function", "class", "name"]
)
def test_objects_that_are_no_callbacks_are_refused_before_training(
    tmp_path: Path, callback: Any
) -> None:
    with raises(ConfigError):
        _run(tmp_path / "run", callback)
    assert not (tmp_path / "run").exists()


def test_baselines_call_no_callback(tmp_path: Path) -> None:
    calls = Calls()
    _run(tmp_path / "run", calls, set={"probe.baselines": ["isolated"]})
    assert calls.names == ["start", "round", "round", "end", "close"]
    assert (tmp_path / "run" / "isolated").is_dir()
