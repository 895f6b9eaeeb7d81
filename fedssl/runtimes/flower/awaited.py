"""Training for as long as somebody waits for what comes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedssl.errors import ClientError
from fedssl.runtimes.flower.memory import STALE
from fedssl.train import Stopped

LOOK = 1.0  # seconds between looks
LATE = "the round's time is up, so it has stopped training"


@contextmanager
def awaited(until: float, mine: Callable[[], bool]) -> Iterator[threading.Event]:
    """An event to stop training by, set when time is up or a newer attempt has taken over: a node does one thing after
    another, so what nobody waits for any more keeps it from the next round."""
    stop, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(max(0.0, min(LOOK, until - time.time()))):
            if time.time() >= until or not mine():
                stop.set()
                return

    watcher = threading.Thread(target=watch, name="awaited", daemon=True)
    watcher.start()
    try:
        yield stop
    except Stopped:
        raise ClientError(LATE if mine() else STALE) from None
    finally:
        over.set()
        watcher.join()
