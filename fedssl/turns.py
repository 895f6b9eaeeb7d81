"""Who may ask what of a device while a step is compiled or recorded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Turns:
    """One thread at a time is `alone`, to compile or to record. Meanwhile nobody is `beside` it, running layers one by
    one: at a shape they have not met cuDNN tries out its kernels and waits for the whole device, which spoils any
    recording. Steps already recorded go on: they ask for nothing new.

    A thread may enter either again while it is in, and be beside while it is alone. Not the other way round: it would
    wait for itself."""

    def __init__(self) -> None:
        self._one = threading.RLock()
        self._changed = threading.Condition()
        self._owner: int | None = None
        self._beside = 0  # threads
        self._mine = threading.local()

    @property
    def _depth(self) -> int:
        """How many times this thread is beside."""
        return getattr(self._mine, "depth", 0)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        if self._owner == threading.get_ident():
            yield
            return
        if self._depth:
            raise RuntimeError("a step is to be compiled or recorded by a thread that runs layers one by one itself")
        with self._one:
            try:
                with self._changed:
                    self._owner = threading.get_ident()
                    self._changed.wait_for(lambda: not self._beside)
                yield
            finally:
                with self._changed:
                    self._owner = None
                    self._changed.notify_all()

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        if self._owner == threading.get_ident() or self._depth:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: self._owner is None)
            self._beside += 1
        self._mine.depth = 1
        try:
            yield
        finally:
            self._mine.depth = 0
            with self._changed:
                self._beside -= 1
                self._changed.notify_all()


TURNS = Turns()
