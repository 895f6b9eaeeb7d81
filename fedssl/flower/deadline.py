"""Stop training at the deadline or when a newer attempt supersedes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedssl.core.errors import ClientError
from fedssl.flower.node_memory import SUPERSEDED
from fedssl.training.trainer import Stopped

POLL = 1.0  # seconds between checks
DEADLINE_PASSED = "it stopped training because the round's deadline has passed"


@contextmanager
def training_deadline(until: float, holds_claim: Callable[[], bool]) -> Iterator[threading.Event]:
    """Yield an event that is set at `until`, or when a newer attempt has claimed the client.

    A node trains one task at a time, so a task that is no longer awaited would delay its next
    round. Training that stops at the event raises a ClientError with the reason.
    """
    stop = threading.Event()
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(max(0.0, min(POLL, until - time.time()))):
            if time.time() >= until or not holds_claim():
                stop.set()
                return

    watcher = threading.Thread(target=watch, name="training deadline", daemon=True)
    watcher.start()
    try:
        yield stop
    except Stopped:
        reason = DEADLINE_PASSED if holds_claim() else SUPERSEDED
        raise ClientError(reason) from None
    finally:
        finished.set()
        watcher.join()
