"""The capture lock: graph capture excludes eager kernels, and every waiting thread gets the
lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from fedssl.training.capture_lock import CaptureLock


def inside(
    enter: Callable[[], AbstractContextManager[None]], until: threading.Event
) -> tuple[threading.Thread, threading.Event]:
    """Start a thread that holds the lock until an event; return an event for its entry."""
    came = threading.Event()

    def stay() -> None:
        with enter():
            came.set()
            until.wait(5)

    thread = threading.Thread(target=stay, daemon=True)
    thread.start()
    return thread, came


def test_an_exclusive_holder_excludes_shared_holders() -> None:
    lock = CaptureLock()
    first = threading.Event()
    second = threading.Event()
    (one, came_one), (two, came_two) = inside(lock.shared, first), inside(lock.shared, first)
    assert came_one.wait(5)
    assert came_two.wait(5)  # several at once
    three, came_three = inside(lock.exclusive, second)
    assert not came_three.wait(0.05)
    four, came_four = inside(lock.shared, first)  # waits behind the exclusive one
    assert not came_four.wait(0.05)
    first.set()
    assert came_three.wait(5)
    assert not came_four.wait(0.05)
    second.set()
    assert came_four.wait(5)
    for thread in (one, two, three, four):
        thread.join(5)


def test_one_thread_is_exclusive_at_a_time_however_often_it_enters() -> None:
    lock = CaptureLock()
    most = 0
    now = 0

    def work() -> None:
        nonlocal most, now
        for _ in range(20):
            with lock.exclusive(), lock.exclusive(), lock.shared():
                now += 1
                most = max(most, now)
                time.sleep(0.0005)
                now -= 1
            with lock.shared():
                assert now == 0

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert most == 1


def test_shared_is_reentrant_although_a_thread_waits_to_be_exclusive() -> None:
    lock = CaptureLock()
    done = threading.Event()
    done.set()
    with lock.shared():
        waiting, came = inside(lock.exclusive, done)
        assert not came.wait(0.05)
        with lock.shared():
            assert not came.is_set()
        assert not came.wait(0.05)  # still in, once
    assert came.wait(5)
    waiting.join(5)


def test_a_shared_holder_cannot_become_exclusive() -> None:
    lock = CaptureLock()
    with lock.shared(), pytest.raises(RuntimeError, match="would be a deadlock"), lock.exclusive():
        pass
    with lock.exclusive():
        pass


def test_a_failure_while_waiting_releases_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = CaptureLock()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lock._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), lock.exclusive():
            pass
    with lock.shared():
        pass


def test_a_failure_releases_the_lock() -> None:
    lock = CaptureLock()
    for enter in (lock.exclusive, lock.shared):
        with pytest.raises(ValueError, match="broken"), enter():
            raise ValueError("broken")
    with lock.exclusive(), lock.shared():
        pass
