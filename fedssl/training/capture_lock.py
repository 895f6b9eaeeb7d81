"""Reader–writer lock: compiling and recording a step excludes eager kernels."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class CaptureLock:
    """One thread compiles or records (`exclusive`), or many run layers eagerly (`shared`).

    At a new shape cuDNN benchmarks its kernels and waits for the whole device, which invalidates
    any recording. Steps already recorded need no lock: they request nothing new.

    Both are reentrant, and a thread may take `shared` while it holds `exclusive`. The reverse would
    be a deadlock and is refused.
    """

    def __init__(self) -> None:
        self._one_writer = threading.RLock()
        self._changed = threading.Condition()
        self._writer: int | None = None  # its thread
        self._readers = 0  # threads
        self._local = threading.local()

    @property
    def _is_reader(self) -> bool:
        """True if the current thread holds `shared`."""
        return getattr(self._local, "reads", False)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wait until no other thread runs layers eagerly, and keep them waiting meanwhile."""
        if self._writer == threading.get_ident():
            yield
            return
        if self._is_reader:
            raise RuntimeError(
                "a thread that holds the shared lock requested the exclusive one, which would be "
                "a deadlock: compile or record steps outside of the `shared` block"
            )
        with self._one_writer:
            try:
                with self._changed:
                    self._writer = threading.get_ident()
                    self._changed.wait_for(lambda: not self._readers)
                yield
            finally:
                with self._changed:
                    self._writer = None
                    self._changed.notify_all()

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Wait until no other thread compiles or records."""
        if self._writer == threading.get_ident() or self._is_reader:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: self._writer is None)
            self._readers += 1
        self._local.reads = True
        try:
            yield
        finally:
            self._local.reads = False
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()


CAPTURE_LOCK = CaptureLock()
