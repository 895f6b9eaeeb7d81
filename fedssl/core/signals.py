"""Protect a block of code from signals."""

from __future__ import annotations

import contextlib
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
