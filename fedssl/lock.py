"""One process per directory."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedssl.errors import RunError

_SECONDS_BETWEEN_TRIES = 0.2


@contextmanager
def locked(folder: Path, wait: Callable[[str], None] | None = None) -> Iterator[int]:
    """Hold the directory's lock, whose descriptor this yields: a child process that inherits it holds the lock, too.

    The kernel drops a dead process's lock, so nobody has to clean up after one. With `wait`, which is told so once,
    another's lock is waited for; without, it is an error.
    """
    with (folder / "run.lock").open("a+") as file:
        while not _taken(file):
            file.seek(0)
            owner = file.read().strip() or "?"
            if wait is None:
                raise RunError(f"{folder} is in use by process {owner}; nothing was changed")
            wait(f"waiting for process {owner}, which is at work in {folder}")
            wait = _silent
            time.sleep(_SECONDS_BETWEEN_TRIES)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _silent(line: str) -> None: ...
