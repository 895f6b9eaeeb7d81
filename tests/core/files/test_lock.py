"""One process per run directory; the lock of a dead process needs no cleanup."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import pytest
from error_messages import raises

from fedssl.core.errors import RunError
from fedssl.core.files.lock import is_locked, locked, locked_directory

pytestmark = pytest.mark.rows("P7")

HOLD = """
import sys, time
from pathlib import Path
from fedssl.core.files.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_and_the_lock_of_a_dead_one_is_acquired(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        before = (tmp_path / "run.lock").read_bytes()
        with (
            pytest.raises(RunError, match=f"in use by process {holder.pid}; nothing was changed"),
            locked(tmp_path),
        ):
            raise AssertionError("two processes hold one lock")
        assert (tmp_path / "run.lock").read_bytes() == before
    finally:
        holder.kill()
        holder.communicate()
    with locked(tmp_path):
        assert (tmp_path / "run.lock").read_text() == str(os.getpid())


def test_the_lock_is_released_at_the_end_and_on_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    for _ in range(2):
        with locked(tmp_path):
            pass


def test_the_same_process_cannot_lock_twice(tmp_path: Path) -> None:
    with (
        locked(tmp_path),
        pytest.raises(RunError, match=f"in use by process {os.getpid()}"),
        locked(tmp_path),
    ):
        raise AssertionError("held twice")


def test_directories_are_locked_separately(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with locked(tmp_path / "a"), locked(tmp_path / "b"):
        for name in ("a", "b"):
            assert (tmp_path / name / "run.lock").read_text() == str(os.getpid())


def _write_and_fail(folder: Path) -> None:
    (folder / "log").touch()
    folder.write_text("a folder is no file")


def test_a_directory_that_is_refused_is_left_as_it_was(tmp_path: Path) -> None:
    """A directory made for the lock is removed, unless it has files; an existing one is
    unchanged.
    """
    for name in ("new", "empty", "full", "run"):
        folder = tmp_path / name
        if name != "new":
            folder.mkdir()
        if name in ("full", "run"):
            (folder / "flower.json").touch()
        if name == "run":
            (folder / "run.lock").write_text("1")
        with pytest.raises(ZeroDivisionError), locked_directory(folder):
            raise ZeroDivisionError
    assert not (tmp_path / "new").exists()
    assert not list((tmp_path / "empty").iterdir())
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["flower.json"]
    assert {file.name for file in (tmp_path / "run").iterdir()} == {"flower.json", "run.lock"}
    with pytest.raises(IsADirectoryError), locked_directory(tmp_path / "new"):
        _write_and_fail(tmp_path / "new")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["log"]
    with locked_directory(tmp_path / "new"):
        assert (tmp_path / "new" / "run.lock").read_text() == str(os.getpid())


def test_a_lock_on_a_deleted_file_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking the file, its holder releases and deletes it. Only the file with
    the right name counts, or two processes would hold one lock each.
    """
    flock = fcntl.flock
    tries = []

    def late(file: IO[str], operation: int) -> None:
        tries.append(file)
        if len(tries) == 1:
            (tmp_path / "run.lock").unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(tmp_path), raises(RunError), locked(tmp_path):
        raise AssertionError("held twice")
    assert (
        len({id(file) for file in tries}) == 3
    )  # the deleted one, the new one, the second holder's


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Its target keeps its content."""
    target = tmp_path / "letter"
    target.write_text("content")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.lock").symlink_to(target)
    with raises(RunError), locked(folder):
        pass
    assert target.read_text() == "content"


def test_a_check_of_the_lock_does_not_look_like_another_process(tmp_path: Path) -> None:
    """`is_locked` holds a shared lock for a moment; here for 10 ms, as on a busy machine."""
    (tmp_path / "run.lock").touch()
    with (tmp_path / "run.lock").open() as checked:
        fcntl.flock(checked, fcntl.LOCK_SH)
        release = threading.Timer(0.01, fcntl.flock, (checked, fcntl.LOCK_UN))
        release.start()
        with locked(tmp_path):
            assert is_locked(tmp_path)
        release.join()
    assert not is_locked(tmp_path)
