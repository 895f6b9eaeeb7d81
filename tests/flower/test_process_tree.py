"""Processes of a federation are found, and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedssl.flower.process_tree import descendants, federation_processes, kill, kill_federation


def _wait_until(condition: Callable[[], object], description: str, seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, description
        time.sleep(0.05)


def _pids(home: Path) -> list[int]:
    return [process.pid for process in federation_processes(home)]


def test_descendants_are_found(tmp_path: Path) -> None:
    """The shell has two children, one of which has a child."""
    inner = "/bin/sh -c 'sleep 60 & wait'"
    parent = subprocess.Popen(["/bin/sh", "-c", f"sleep 60 & {inner} & wait"])
    try:
        _wait_until(lambda: len(descendants(parent.pid)) == 3, "all are seen")
    finally:
        for process in descendants(parent.pid):
            kill(process)
        parent.wait()
    assert descendants(parent.pid) == []


def _sleep_with_home(home: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env={**os.environ, "FLWR_HOME": str(home)})


def test_only_processes_of_the_federation_are_killed(tmp_path: Path) -> None:
    """Those with FLWR_HOME `home`, but not `home2`."""
    left = _sleep_with_home(tmp_path / "home")
    other = _sleep_with_home(tmp_path / "home2")
    try:
        _wait_until(lambda: _pids(tmp_path / "home") == [left.pid], "it is seen")
        kill_federation(tmp_path / "home")
        assert left.wait(10) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


STARTER = """
import sys
from pathlib import Path
from fedssl.flower.local_processes import Processes
processes = Processes(Path(sys.argv[1]))
print(processes.start("sleeper", "sleep", "60").pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="uses prctl of Linux")
def test_processes_end_when_their_starter_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTER, str(tmp_path)]
    starter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert starter.stdin is not None
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    _wait_until(lambda: _pids(tmp_path / "home") == [pid], "it runs")
    starter.kill()
    starter.wait()
    starter.stdin.close()
    starter.stdout.close()
    _wait_until(lambda: not federation_processes(tmp_path / "home"), "it ends, too")


ORPHAN = """
import os, sys, time
from fedssl.flower.serverapp import exit_with_parent
exit_with_parent(os.getppid())
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    shell = subprocess.Popen(
        ["/bin/sh", "-c", '"$0" -W ignore -c "$1" & wait', sys.executable, ORPHAN],
        stdout=subprocess.PIPE,
        env={**os.environ, "FLWR_HOME": str(tmp_path)},
    )
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    assert pid in _pids(tmp_path)
    shell.kill()
    shell.wait()
    shell.stdout.close()
    _wait_until(lambda: pid not in _pids(tmp_path), "it ends, too")
