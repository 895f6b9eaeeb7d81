"""One process per directory."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fedssl.errors import RunError

NAME = "run.lock"
_SECONDS_BETWEEN_TRIES = 0.2


def make_private(folder: Path) -> None:
    """Create a directory that only its owner may read (mode 0700). One that exists keeps its mode."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def locked(folder: Path, wait: Callable[[str], None] | None = None) -> Iterator[int]:
    """Hold the directory's lock, whose descriptor this yields: a child process that inherits it holds the lock, too.

    The kernel drops a dead process's lock, so nobody has to clean up after one. With `wait`, which is told so once,
    another's lock is waited for; without, it is an error.
    """
    with _opened(folder / NAME, wait) as file:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


@contextmanager
def entered(folder: Path) -> Iterator[None]:
    """Hold the lock of a directory that may yet be refused: it is made if there is none, and on an error neither it, if
    it is still empty, nor a lock file that was not there before is left behind."""
    made = not folder.exists()
    make_private(folder)
    new = not (folder / NAME).exists()
    with locked(folder):
        try:
            yield
        except BaseException:
            if new:
                (folder / NAME).unlink(missing_ok=True)
            if made:
                with suppress(OSError):  # something has been written
                    folder.rmdir()
            raise


@contextmanager
def _opened(path: Path, wait: Callable[[str], None] | None) -> Iterator[IO[str]]:
    """The file, once its lock is ours."""
    while True:
        make_private(path.parent)  # a start that was refused may have removed it again
        with path.open("a+") as file:
            while not _taken(file):
                file.seek(0)
                owner = file.read().strip() or "?"
                if wait is None:
                    raise RunError(f"{path.parent} is in use by process {owner}; nothing was changed")
                wait(f"waiting for process {owner}, which is at work in {path.parent}")
                wait = _silent
                time.sleep(_SECONDS_BETWEEN_TRIES)
            if _is_at(path, file):
                yield file
                return


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, file: IO[str]) -> bool:
    """Whether the file still has that name: who held its lock before may have taken it away since it was opened."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _silent(line: str) -> None: ...
