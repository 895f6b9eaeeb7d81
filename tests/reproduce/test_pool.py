"""What a pool does when processes die, do not end, or cannot be had. The processes are small scripts that speak as
those that train do; those are in tests/robustness/test_kill_sweep.py."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pretended import BAD, GOOD, outcome, pretend

import fedssl
from fedssl.drive import Interrupted
from fedssl.reproduce import TableError, _serve, _todo, pool, work
from fedssl.reproduce.outcome import Outcome
from fedssl.reproduce.pool import Pool

ANSWER = "import sys, os, json, time, signal, subprocess\nfor line in sys.stdin:\n    job = json.loads(line)\n"
HANG = "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
Speak = Callable[[str], None]


@pytest.fixture
def speak(monkeypatch: pytest.MonkeyPatch) -> Speak:
    """speak(script): processes run this."""
    return lambda script: monkeypatch.setattr(pool, "WORKER", [sys.executable, "-c", script])


@pytest.fixture
def two(tmp_path: Path) -> Outcome:
    """Two trainings, of one seed each."""
    return outcome(tmp_path, GOOD, BAD, seeds=1)


def served(made: Outcome) -> list[str]:
    """What is told of each training in the end."""
    _serve(made, Pool(_todo(made), ["cpu"], Path("data")), None)
    return [each.problem or each.state for each in made.results]


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has asked for its exit code counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(what: Callable[[], Any], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("os.kill(os.getpid(), 9)", "was killed (SIGKILL), as it is where memory runs out;"),
        ("os.kill(os.getpid(), 11)", "was killed (SIGSEGV);"),
        ("sys.stdout.write('{\"a'); sys.stdout.flush(); os._exit(3)", "ended with code 3;"),  # half an answer
    ],
)
def test_a_process_that_dies_takes_no_other_training_with_it(two: Outcome, speak: Speak, end: str, told: str) -> None:
    """The first training's does; the second training has another one."""
    first = two.wanted[0].training
    assert first is not None
    speak(ANSWER + f"    if job['key'] == {first.key!r}:\n        {end}\n    print('{{}}', flush=True)\n")
    died, other = served(two)
    assert died.startswith(f"its process {told}")
    assert died.endswith(f"{first.folder / work.LOG} has what it said, and the same command goes on with it")
    assert other == "missing"  # it has answered that all is well, and measured nothing: it is a pretender


def test_no_process_to_be_had(two: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WORKER", ["/no/such/program"])
    assert all(told.startswith("no process to train in: ") for told in served(two))


def test_a_process_that_does_not_end_is_killed_with_all_that_it_began(
    two: Outcome, speak: Speak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears neither Ctrl-C nor that its standard input is closed, and has a process of its own."""
    monkeypatch.setattr(pool, "PATIENCE", 0.2)
    child = f"child = subprocess.Popen([sys.executable, '-c', {HANG + 'time.sleep(300)'!r}])\n"
    note = f"open({str(tmp_path / 'pid')!r}, 'w').write(f'{{child.pid}}\\n')\n"
    speak(HANG + child + note + "time.sleep(300)\n")
    busy = Pool(_todo(two), ["cpu"], Path("data"))
    wait_for(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text().endswith("\n"))
    pids = [next(iter(busy._processes.values())).pid, int((tmp_path / "pid").read_text())]
    assert not any(map(gone, pids))
    busy.stop()
    wait_for(lambda: all(map(gone, pids)))
    wait_for(lambda: not busy.busy)


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(two: Outcome, speak: Speak) -> None:
    """Between the answer for the first training and the look at it, somebody stops the table."""
    first, second = (want.training for want in two.wanted)
    assert first is not None
    assert second is not None
    speak(ANSWER + f"    if job['key'] == {second.key!r}:\n        time.sleep(300)\n    print('{{}}', flush=True)\n")
    two.save("")
    busy = Pool(_todo(two), ["cpu"], Path("data"))
    wait_for(lambda: second in busy.running)
    (process,) = busy._processes.values()
    pretend(two.wanted[0], 80.0)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="what is trained is saved, and the same command goes on"):
        _serve(two, busy, SimpleNamespace(look=interrupt, ended=interrupt))
    assert gone(process.pid)
    assert process.returncode is not None
    assert [cell["state"] for cell in json.loads(two.json_file.read_text())["cells"]] == ["done", "missing"]
    assert [want.training for want in two.wanted if want.training in _todo(two)] == [second]


def test_a_training_that_was_not_begun_when_all_was_stopped_is_not_begun(
    two: Outcome, speak: Speak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes just when its process is made, which has not heard it."""
    speak(ANSWER + f"    open({str(tmp_path / 'job')!r}, 'w')\n    print('{{}}', flush=True)\n")
    begin = Pool._begin

    def late(self: Pool, device: str) -> Any:
        process = begin(self, device)
        self._stopped = True
        return process

    monkeypatch.setattr(Pool, "_begin", late)
    assert served(two) == ["stopped", "missing"]
    assert not (tmp_path / "job").exists()


def test_ctrl_c_in_a_probe_that_trains_is_no_problem_of_the_cell(
    two: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise Interrupted("stopped after round 3")

    monkeypatch.setattr(work, "_measured", stopped)
    measures = [{"file": "semi-0.json", "probe": "collaborative", "settings": {}, "on": None}]
    with pytest.raises(Interrupted):
        work._measure_all({"key": "k", "measures": measures}, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", ["sweep", "reproduce"])
def test_a_failed_worker_is_an_error_once_the_others_are_finished(
    command: str, speak: Speak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two trainings the first's process dies and the second is measured."""
    monkeypatch.chdir(tmp_path)
    made = "open(os.path.join(job['folder'], 'measures', job['measures'][0]['file']), 'w')"
    content = "json.dumps({'experiment': job['key'], 'value': 80.0, 'code': 'x'})"
    measure = f"    os.makedirs(os.path.join(job['folder'], 'measures'))\n    {made}.write({content})\n"
    first = f"{str(tmp_path / 'first')!r}"
    die = f"    if not os.path.exists({first}):\n        open({first}, 'w')\n        os._exit(3)\n"
    speak(ANSWER + die + measure + "    print('{}', flush=True)\n")
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
    assert [each.state for each in outcome.asked] == ["failed", "done"]
    asked = {(each.cell.row, each.cell.column) for each in outcome.asked}
    saved = json.loads(outcome.json_file.read_text())["cells"]
    assert [cell["state"] for cell in saved if (cell["row"], cell["column"]) in asked] == ["failed", "done"]


def test_the_command_prints_the_table_and_fails(
    speak: Speak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    speak("import os\nos._exit(3)\n")
    words = ["sweep", "demo", "--set", "train.lr=0.1,0.2", "--seeds", "1", "--dir", "out", "--device", "cpu"]
    code, out, err = cli(*words)
    assert code == 1
    assert "train.lr=0.2" in out
    last = err.splitlines()[-1]
    assert last.startswith("fedssl: 2 of 2 cells failed (train.lr=0.1, linear: its process ended with code 3;")
    assert "train.lr=0.2, linear: its process" in last
    code, out, err = cli(*words, "--json")
    assert code == 1
    assert [cell["state"] for cell in json.loads(out)["cells"]] == ["failed", "failed"]
