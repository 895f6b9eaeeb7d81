"""A lock that lets one process use a directory."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fedssl.core.console import Notify, ignore_message
from fedssl.core.errors import RunError

NAME = "run.lock"
_SECONDS_BETWEEN_TRIES = 0.2
# `is_locked` holds the lock for some microseconds: that must not look like another process at work.
_TRIES = 4
_SECONDS_BETWEEN_QUICK_TRIES = 0.02


def make_private(folder: Path) -> None:
    """Create a directory that only its owner may read (mode 0700). An existing one keeps its
    mode."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def locked(folder: Path, wait: Notify | None = None) -> Iterator[int]:
    """Hold the directory's lock and yield its descriptor: a child process that inherits it holds
    the lock, too.

    The kernel drops the lock of a dead process, so no cleanup is needed. If another process holds
    the lock, raise RunError, or, with `wait`, call it once with a message and wait.
    """
    with _locked_file(folder / NAME, wait) as file:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


@contextmanager
def locked_directory(folder: Path) -> Iterator[None]:
    """Create a directory if it does not exist, and hold its lock.

    On an error, remove the lock file and the directory if this call created them and the directory
    is empty: a run that is refused leaves nothing behind.
    """
    folder_is_new = not folder.exists()
    make_private(folder)
    lock_is_new = not (folder / NAME).exists()
    with locked(folder):
        try:
            yield
        except BaseException:
            if lock_is_new:
                (folder / NAME).unlink(missing_ok=True)
            if folder_is_new:
                with suppress(OSError):  # the directory is not empty
                    folder.rmdir()
            raise


@contextmanager
def _locked_file(path: Path, wait: Notify | None) -> Iterator[IO[str]]:
    """Open the file, lock it and yield it."""
    while True:
        make_private(path.parent)  # a start that was refused may have removed it
        with _opened(path) as file:
            while not _try_lock(file):
                file.seek(0)
                owner = file.read().strip() or "?"
                if wait is None:
                    raise RunError(
                        f"{path.parent} is in use by process {owner}; nothing was changed. "
                        "Wait until that process has finished"
                    )
                wait(f"waiting for process {owner}, which is at work in {path.parent}")
                wait = ignore_message  # one message is enough
                time.sleep(_SECONDS_BETWEEN_TRIES)
            if _has_path(file, path):
                yield file
                return


def _opened(path: Path) -> IO[str]:
    """Open a lock file, and create it if it does not exist.

    Its content is replaced, so a symbolic link is not followed: raise RunError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags, 0o666), "a+")
    except OSError as problem:
        if problem.errno != errno.ELOOP:
            raise
        raise RunError(
            f"{path} is a symbolic link, which is not followed; nothing was changed. Remove the "
            "link"
        ) from None


def _try_lock(file: IO[str]) -> bool:
    """Lock a file; False if another process holds its lock."""
    for number in range(_TRIES):
        if number:
            time.sleep(_SECONDS_BETWEEN_QUICK_TRIES)
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def _has_path(file: IO[str], path: Path) -> bool:
    """True if an open file still has this path: the previous owner of the lock may have removed it
    since it was opened."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def is_locked(folder: Path) -> bool:
    """True if a process holds the lock of a directory; changes nothing."""
    try:
        with (folder / NAME).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the directory was never locked, or may not be read
        return False
    return False
