"""Protect a block of code from signals, and end a process with its parent."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM within the block; no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def exit_when_stdin_closes() -> None:
    """End this process at once when its standard input closes, because its parent has ended.

    The files of a run are complete at any moment.
    """
    threading.Thread(target=_exit_after_stdin, daemon=True).start()


def _exit_after_stdin() -> None:
    # Not sys.stdin, whose lock the interpreter needs when it exits.
    while os.read(0, 1024):
        pass
    os._exit(1)
