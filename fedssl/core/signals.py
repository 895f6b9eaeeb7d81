"""Turn signals into KeyboardInterrupt, protect code from them; end a process with its parent."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

REPEAT_INTERVAL = 10.0  # seconds after a signal during which further signals are ignored


class Interrupt:
    """A signal handler that raises KeyboardInterrupt.

    A second signal soon after must not interrupt the clean-up that the first has started; a much
    later one is handled again, in case a library has swallowed the first.
    """

    def __init__(self) -> None:
        self._last = -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, unless a signal has done so a short time ago."""
        if time.monotonic() - self._last > REPEAT_INTERVAL:
            self._last = time.monotonic()
            raise KeyboardInterrupt


@contextlib.contextmanager
def repeats_ignored() -> Iterator[None]:
    """Ignore a Ctrl-C within the block that follows another one soon.

    Replaces only Python's own handler, which scripts and notebooks have: a program that has set
    another decides itself. No effect outside the main thread.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, Interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM within the block; no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.getsignal(number)
        ignore_signal(number)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def ignore_signal(number: signal.Signals) -> None:
    """Ignore a signal from now on.

    Python prints an error if the signal arrives while SIG_IGN is set in place of a handler. So a
    handler that does nothing takes the last signals, and others are blocked until SIG_IGN is set.
    """
    signal.signal(number, lambda *_: None)
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        signal.signal(number, signal.SIG_IGN)
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})  # and calls handlers of earlier signals
    signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


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
