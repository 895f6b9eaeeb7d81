"""`fedssl flower up`: its refusals, progress display and error reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from error_messages import raises
from fake_grid import tiny

from fedssl.core.errors import FedsslError, RunError
from fedssl.core.settings import UnknownNameError
from fedssl.experiment.experiment import load
from fedssl.flower import local_federation
from fedssl.flower.local_federation import LoopbackRun, watch_run
from fedssl.flower.local_processes import local_processes
from fedssl.flower.process_tree import federation_processes
from fedssl.runs.session import Interrupted

Cli = Callable[..., tuple[int, str, str]]


class Job:
    """A job that writes the rounds log: one step for each poll, then it ends."""

    def __init__(self, log: Path, steps: Iterable[int]) -> None:
        self._log = log
        self._steps = iter(steps)

    def write(self, rounds: int) -> None:
        """Write a log of so many rounds, whose lines differ from those of any other length."""
        lines = [json.dumps({"round": 1 + i, "x": "x" * rounds}) for i in range(rounds)]
        self._log.write_text("".join(f"{line}\n" for line in lines))

    def poll(self) -> int | None:
        """Take one step; return 0 when all are done."""
        rounds = next(self._steps, None)
        if rounds is None:
            return 0
        self.write(rounds)
        return None


class NoProcesses:
    """A federation without processes and logs."""

    running: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def log(self, name: str) -> Path:
        """Return the path of a log that does not exist."""
        return self._folder / "missing.log"

    def first_exited(self) -> None:
        """No process has ended."""


class RecordedProgress:
    """A progress display that records the numbers of the rounds it shows."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def __enter__(self) -> RecordedProgress:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def round(self, line: dict[str, Any]) -> None:
        """Record a round."""
        self.rounds.append(line["round"])


def test_each_round_is_shown_once_although_the_server_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has three rounds; the server begins again after the first and ends with the fifth."""
    job = Job(tmp_path / "rounds.jsonl", steps=(1, 2, 4, 5))
    job.write(3)
    progress = RecordedProgress()
    (tmp_path / "results.json").touch()
    monkeypatch.setattr(local_federation, "round_progress", lambda *_: progress)
    monkeypatch.setattr(local_federation, "POLL", 0.0)
    experiment = tiny("fedavg", "simclr", rounds=5)
    run = LoopbackRun(experiment, tmp_path, "title", quiet=True, notify=lambda line: None)
    watch_run(job, NoProcesses(tmp_path), run)  # type: ignore[arg-type]
    assert progress.rounds == [4, 5]


def test_without_flower_the_error_explains_how_to_install_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedssl.cli.commands.flower.find_spec", lambda name: None)
    code, _, error = cli("flower", "up", "demo")
    assert (code, error) == (
        2,
        'fedssl: Flower is not installed: in a clone of fedssl, pip install ".[flower]"\n',
    )


def test_a_run_of_another_experiment_is_refused_before_anything_starts(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "experiment.toml").write_text(load("demo").to_toml())
    (tmp_path / "rounds.jsonl").write_text("{}\n")
    code, _, error = cli("flower", "up", "demo", "--set", "seed=5", "--dir", str(tmp_path))
    assert code == 2
    assert "holds a run of another experiment (seed: 0 in that run, 5 now" in error
    assert {path.name for path in tmp_path.iterdir()} == {"experiment.toml", "rounds.jsonl"}


def test_more_nodes_than_clients_are_refused_before_anything_starts(
    cli: Cli, tmp_path: Path
) -> None:
    code, _, error = cli("flower", "up", "demo", "--clients", "6", "--dir", str(tmp_path / "run"))
    assert (code, error) == (2, "fedssl: the experiment has 5 clients, too few for 6 SuperNodes\n")
    assert not (tmp_path / "run").exists()


def test_a_file_may_be_complete_with_set_only(cli: Cli, tmp_path: Path) -> None:
    """The path of the images is missing in the file; with it, their folder is looked for."""
    file = tmp_path / "mine.toml"
    folder = {"name": "folder", "path": "photos", "size": 32, "layout": "classes"}
    lines = load("demo", {"data": folder}).to_toml().splitlines()
    file.write_text("\n".join(line for line in lines if not line.startswith("path = ")))
    missing = tmp_path / "missing"
    code, _, error = cli("flower", "up", str(file), "--set", f"data.path={missing}")
    assert code == 3
    assert f"there is no folder {missing}" in error


def _quiet_run(folder: Path) -> LoopbackRun:
    return LoopbackRun(load("demo"), folder, "demo", quiet=True, notify=lambda line: None)


def test_a_node_that_exits_ends_the_wait(tmp_path: Path) -> None:
    """The error has the end of the node's log; the server would wait ten minutes for the node."""
    with local_processes(tmp_path) as processes:
        processes.start("node0", "sh", "-c", "echo no such key; exit 3")
        job = processes.start("run", "sleep", "60")
        with raises(RunError):
            watch_run(job, processes, _quiet_run(tmp_path))
    assert not federation_processes(tmp_path / "home")


@pytest.mark.parametrize("error", [RunError, Interrupted, UnknownNameError])
def test_a_failed_run_is_reported_with_fedssls_error(
    error: type[FedsslError], tmp_path: Path
) -> None:
    last_line = f"{error.__module__}.{error.__name__}: only 1 of 2 clients joined"
    log = f"Traceback\n  File fedssl/x.py\n{last_line}\nsome banner: fedssl.flower: x\n"
    with local_processes(tmp_path) as processes:
        job = processes.start("run", "printf", "%s", log)
        with pytest.raises(RunError) as raised:
            watch_run(job, processes, _quiet_run(tmp_path))
    expected = "run the same command again to resume. only 1 of 2 clients joined\n"
    assert expected in str(raised.value)
    assert "banner" not in str(raised.value)
