"""One process per run directory, and no cleaning up after a dead one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedssl.errors import RunError
from fedssl.lock import locked

HOLD = """
import sys, time
from pathlib import Path
from fedssl.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_and_a_dead_ones_lock_taken_over(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        before = (tmp_path / "run.lock").read_bytes()
        with pytest.raises(RunError, match=f"in use by process {holder.pid}; nothing was changed"), locked(tmp_path):
            raise AssertionError("two processes hold one lock")
        assert (tmp_path / "run.lock").read_bytes() == before
    finally:
        holder.kill()
        holder.communicate()
    with locked(tmp_path):
        assert (tmp_path / "run.lock").read_text() == str(os.getpid())


def test_let_go_at_the_end_and_on_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    for _ in range(2):
        with locked(tmp_path):
            pass


def test_not_even_the_same_process_twice(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(RunError, match=f"in use by process {os.getpid()}"), locked(tmp_path):
        raise AssertionError("held twice")


def test_directories_are_locked_apart(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with locked(tmp_path / "a"), locked(tmp_path / "b"):
        pass
