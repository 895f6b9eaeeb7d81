"""A pool whose processes die, do not end, or cannot be started.

The processes are small scripts that receive the commands of fedssl; real ones are in
tests/robustness/test_kill_sweep.py.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from error_messages import raises
from fake_results import BAD, GOOD, fake_result, make_outcome

import fedssl
from fedssl.paper_tables import results_on_disk, scheduler
from fedssl.paper_tables.reproduce import TableError, _missing_measures, _run_pool
from fedssl.paper_tables.results_on_disk import find_measurement
from fedssl.paper_tables.scheduler import Pool
from fedssl.paper_tables.table_results import Outcome
from fedssl.runs.local import Interrupted

# `folder` is that of the training, whose results exist already.
COMMAND = """
import os, sys, time
command = sys.argv[1]
folder = sys.argv[sys.argv.index("--dir") + 1] if command == "run" else sys.argv[2]
"""
MEASURE = """
if command == "evaluate":
    print('{"mean": 80.0, "code": "x"}')
"""
HANG = "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
Speak = Callable[[str], None]


@pytest.fixture
def speak(monkeypatch: pytest.MonkeyPatch) -> Speak:
    """speak(script): run this script in place of fedssl."""
    return lambda script: monkeypatch.setattr(scheduler, "PROGRAM", [sys.executable, "-c", script])


@pytest.fixture
def two(tmp_path: Path) -> Outcome:
    """Two finished trainings, of one seed each, that are not measured yet."""
    outcome = make_outcome(tmp_path, GOOD, BAD, seeds=1)
    for plan in outcome.requested_seeds:
        fake_result(plan, 0.0)
        assert plan.training is not None
        shutil.rmtree(plan.training.folder / "measures")
    return outcome


def served(outcome: Outcome) -> list[str]:
    """Return the problem or state of each cell after all processes have ended."""
    _run_pool(outcome, Pool(_missing_measures(outcome), ["cpu"], Path("data")), None)
    return [result.problem or result.state for result in outcome.results]


def gone(pid: int) -> bool:
    """True if a process has ended, also if its exit code was not read yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("end", "problem"),
    [
        ("os.kill(os.getpid(), 9)", "was killed (SIGKILL), perhaps because memory ran out;"),
        ("os.kill(os.getpid(), 11)", "was killed (SIGSEGV);"),
        ("os._exit(3)", "ended with code 3;"),
    ],
)
def test_a_process_that_dies_takes_no_other_training_with_it(
    two: Outcome, speak: Speak, end: str, problem: str
) -> None:
    first = two.requested_seeds[0].training
    assert first is not None
    speak(f"{COMMAND}if folder == {str(first.folder)!r}:\n    {end}\n{MEASURE}")
    died, other = served(two)
    assert died.startswith(f"its process {problem}")
    assert died.endswith(
        f"see {first.folder / scheduler.LOG_FILE}, and run the same command again to resume"
    )
    assert other == "done"


@pytest.mark.parametrize(
    ("end", "problem"),
    [
        (
            "sys.exit('an older error\\nfedssl: first line\\n  second line')",
            "first line second line",
        ),
        ("raise KeyError('x')", "KeyError: 'x'"),
    ],
)
def test_the_problem_of_a_measurement_is_the_last_message_of_its_command(
    two: Outcome, speak: Speak, end: str, problem: str
) -> None:
    speak(f"{COMMAND}if command == 'evaluate':\n    {end}\n")
    assert served(two) == [problem, problem]
    first = two.requested_seeds[0].training
    assert first is not None
    assert (first.folder / scheduler.LOG_FILE).read_text().splitlines()[-1] in end + problem


def test_a_measurement_is_stored_with_the_code_that_made_it(two: Outcome, speak: Speak) -> None:
    speak(COMMAND + MEASURE)
    assert served(two) == ["done", "done"]
    plan = two.requested_seeds[0]
    assert plan.training is not None
    assert plan.measure is not None
    measurement = find_measurement(plan.training, plan.measure)
    assert measurement is not None
    assert (measurement["value"], measurement["code"]) == (80.0, "x")


def test_a_recipe_that_has_changed_since_the_start_is_not_measured(
    two: Outcome, speak: Speak
) -> None:
    """The script trains nothing, so that the training has no results of this experiment."""
    for plan in two.requested_seeds:
        assert plan.training is not None
        (plan.training.folder / "results.json").unlink()
    speak(COMMAND + MEASURE)
    assert all("has changed since the table was started" in text for text in served(two))


def test_a_process_that_cannot_be_started(two: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "PROGRAM", ["/no/such/program"])
    beginning = "the process of a training cannot be started: "
    assert all(text.startswith(beginning) for text in served(two))


def test_a_process_that_does_not_end_is_killed_with_all_that_it_began(
    two: Outcome, speak: Speak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores SIGTERM and its closed standard input, and has started another process."""
    monkeypatch.setattr(scheduler, "STOP_TIMEOUT", 0.2)
    child = f"child = subprocess.Popen([sys.executable, '-c', {HANG + 'time.sleep(300)'!r}])\n"
    note = f"open({str(tmp_path / 'pid')!r}, 'w').write(f'{{child.pid}}\\n')\n"
    speak(HANG + child + note + "time.sleep(300)\n")
    busy = Pool(_missing_measures(two), ["cpu"], Path("data"))
    wait_for(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text().endswith("\n"))
    pids = [next(iter(busy._processes.values())).pid, int((tmp_path / "pid").read_text())]
    assert not any(map(gone, pids))
    busy.stop()
    wait_for(lambda: all(map(gone, pids)))
    wait_for(lambda: not busy.busy)


def test_ctrl_c_keeps_finished_trainings_and_prints_how_to_resume(
    two: Outcome, speak: Speak
) -> None:
    """Ctrl-C comes between the end of the first training and the next update."""
    first, second = (plan.training for plan in two.requested_seeds)
    assert first is not None
    assert second is not None
    speak(f"{COMMAND}if folder == {str(second.folder)!r}:\n    time.sleep(300)\n{MEASURE}")
    two.save("")
    busy = Pool(_missing_measures(two), ["cpu"], Path("data"))
    wait_for(lambda: second in busy.running and busy._processes)
    (process,) = busy._processes.values()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with raises(Interrupted):
        _run_pool(two, busy, SimpleNamespace(update=interrupt, training_ended=interrupt))
    assert gone(process.pid)
    assert process.returncode is not None
    assert [cell["state"] for cell in json.loads(two.json_file.read_text())["cells"]] == [
        "done",
        "missing",
    ]
    assert [
        plan.training for plan in two.requested_seeds if plan.training in _missing_measures(two)
    ] == [second]


def test_a_training_that_has_not_begun_does_not_begin_after_a_stop(
    two: Outcome, speak: Speak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes while its process starts, so that stop() sends no signal to it."""
    speak(COMMAND + f"time.sleep(1)\nopen({str(tmp_path / 'job')!r}, 'w')\n")
    begin = Pool._start_process

    def late(self: Pool, *arguments: Any) -> Any:
        process = begin(self, *arguments)
        self._stopped = True
        return process

    monkeypatch.setattr(Pool, "_start_process", late)
    assert served(two) == ["stopped", "missing"]
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("command", ["sweep", "reproduce"])
def test_a_failed_process_is_an_error_once_the_others_are_finished(
    command: str, speak: Speak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of the first training dies, and the second training is measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results_on_disk, "read_results", lambda *_: {"environment": {}})
    first = f"{str(tmp_path / 'first')!r}"
    die = f"if not os.path.exists({first}):\n    open({first}, 'w')\n    os._exit(3)\n"
    speak(COMMAND + die + MEASURE)
    cells = ["FedU, CIFAR-10, IID", "FedBYOL, CIFAR-10, IID"]
    call = {
        "sweep": lambda: fedssl.sweep("demo", ["train.lr=0.1,0.2"], 1, dir="out", device="cpu"),
        "reproduce": lambda: fedssl.reproduce("fedema-3", "mini", 1, cells, "out", "cpu"),
    }[command]
    with pytest.raises(TableError) as raised:
        call()
    row = {"sweep": "train.lr=0.1, linear", "reproduce": "FedBYOL, CIFAR-10, IID"}[command]
    text = str(raised.value)
    assert text.startswith(f"1 of 2 cells failed ({row}: its process ended with code 3;")
    assert "\n" not in text
    outcome = raised.value.outcome
    assert [result.state for result in outcome.requested_cells] == ["failed", "done"]
    requested = {(result.cell.row, result.cell.column) for result in outcome.requested_cells}
    saved = json.loads(outcome.json_file.read_text())["cells"]
    assert [cell["state"] for cell in saved if (cell["row"], cell["column"]) in requested] == [
        "failed",
        "done",
    ]


def test_the_command_prints_the_table_and_fails(
    speak: Speak,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Callable[..., tuple[int, str, str]],
) -> None:
    monkeypatch.chdir(tmp_path)
    speak("import os\nos._exit(3)\n")
    words = [
        "sweep",
        "demo",
        "--set",
        "train.lr=0.1,0.2",
        "--seeds",
        "1",
        "--dir",
        "out",
        "--device",
        "cpu",
    ]
    code, out, err = cli(*words)
    assert code == 1
    assert "train.lr=0.2" in out
    last = err.splitlines()[-1]
    assert last.startswith(
        "fedssl: 2 of 2 cells failed (train.lr=0.1, linear: its process ended with code 3;"
    )
    assert "train.lr=0.2, linear: its process" in last
    code, out, err = cli(*words, "--json")
    assert code == 1
    assert [cell["state"] for cell in json.loads(out)["cells"]] == ["failed", "failed"]
