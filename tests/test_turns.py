"""Recording alone: nobody runs layers meanwhile, whoever waits gets its turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from fedssl.turns import Turns


def inside(
    enter: Callable[[], AbstractContextManager[None]], until: threading.Event
) -> tuple[threading.Thread, threading.Event]:
    """A thread that stays in there until told; and an event that says it has come in."""
    came = threading.Event()

    def stay() -> None:
        with enter():
            came.set()
            until.wait(5)

    thread = threading.Thread(target=stay, daemon=True)
    thread.start()
    return thread, came


def test_nobody_is_beside_whoever_is_alone() -> None:
    turns, first, second = Turns(), threading.Event(), threading.Event()
    (one, came_one), (two, came_two) = inside(turns.beside, first), inside(turns.beside, first)
    assert came_one.wait(5)
    assert came_two.wait(5)  # several at once
    three, came_three = inside(turns.alone, second)
    assert not came_three.wait(0.05)
    four, came_four = inside(turns.beside, first)  # comes after the one that waits to be alone
    assert not came_four.wait(0.05)
    first.set()
    assert came_three.wait(5)
    assert not came_four.wait(0.05)
    second.set()
    assert came_four.wait(5)
    for thread in (one, two, three, four):
        thread.join(5)


def test_one_is_alone_at_a_time_however_deep() -> None:
    turns, most, now = Turns(), 0, 0

    def work() -> None:
        nonlocal most, now
        for _ in range(20):
            with turns.alone(), turns.alone(), turns.beside():
                now += 1
                most = max(most, now)
                time.sleep(0.0005)
                now -= 1
            with turns.beside():
                assert now == 0

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert most == 1


def test_beside_may_be_entered_again_though_somebody_waits_to_be_alone() -> None:
    turns, done = Turns(), threading.Event()
    done.set()
    with turns.beside():
        waiting, came = inside(turns.alone, done)
        assert not came.wait(0.05)
        with turns.beside():
            assert not came.is_set()
        assert not came.wait(0.05)  # still in, once
    assert came.wait(5)
    waiting.join(5)


def test_whoever_is_beside_cannot_be_alone() -> None:
    turns = Turns()
    with turns.beside(), pytest.raises(RuntimeError, match="one by one"), turns.alone():
        pass
    with turns.alone():
        pass


def test_a_failure_while_waiting_ends_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(turns._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), turns.alone():
            pass
    with turns.beside():
        pass


def test_a_failure_ends_a_turn() -> None:
    turns = Turns()
    for enter in (turns.alone, turns.beside):
        with pytest.raises(ValueError, match="broken"), enter():
            raise ValueError("broken")
    with turns.alone(), turns.beside():
        pass
