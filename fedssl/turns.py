"""Who may ask what of a device while a step is compiled or recorded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Turns:
    """One thread at a time is `alone`, to compile or to record. Meanwhile nobody is `beside` it, running layers one by
    one: at a shape they have not met cuDNN tries out its kernels and waits for the whole device, which spoils any
    recording. Steps already recorded go on: they ask for nothing new."""

    def __init__(self) -> None:
        self._one = threading.RLock()
        self._changed = threading.Condition()
        self._owner: int | None = None
        self._beside = 0

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self._one:
            if self._owner == threading.get_ident():
                yield
                return
            with self._changed:
                self._owner = threading.get_ident()
                self._changed.wait_for(lambda: not self._beside)
            try:
                yield
            finally:
                with self._changed:
                    self._owner = None
                    self._changed.notify_all()

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Not to be entered twice by one thread. Whoever is alone may enter it: nothing changes."""
        if self._owner == threading.get_ident():
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: self._owner is None)
            self._beside += 1
        try:
            yield
        finally:
            with self._changed:
                self._beside -= 1
                self._changed.notify_all()


TURNS = Turns()
