"""One process per run directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedssl.errors import RunError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the directory's lock. The kernel drops a dead process's lock, so nobody has to clean up after one."""
    path = folder / "run.lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise RunError(f"{folder} is in use by process {file.read().strip() or '?'}; nothing was changed") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
