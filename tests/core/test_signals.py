"""Signals as KeyboardInterrupt, once, and blocks that signals do not interrupt."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from fedssl.core import signals
from fedssl.core.signals import Interrupt, repeats_ignored, signals_ignored


@pytest.fixture(autouse=True)
def _restored_handlers() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_only_the_first_of_two_signals_interrupts() -> None:
    with repeats_ignored():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):  # outside of the block, every signal does
        signal.raise_signal(signal.SIGINT)


def test_a_much_later_signal_interrupts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt = Interrupt()
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with pytest.raises(KeyboardInterrupt):
        interrupt(signal.SIGINT, None)
    now += signals.REPEAT_INTERVAL
    interrupt(signal.SIGINT, None)
    now += 1
    with pytest.raises(KeyboardInterrupt):
        interrupt(signal.SIGINT, None)


def test_each_block_starts_anew() -> None:
    for _ in range(2):
        with repeats_ignored(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_handler_of_the_program_is_kept() -> None:
    received = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    with repeats_ignored():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert received == [signal.SIGINT] * 2


def test_another_thread_changes_no_handler() -> None:
    handlers = []

    def enter() -> None:
        with repeats_ignored(), signals_ignored():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def test_no_signal_interrupts_a_protected_block() -> None:
    with signals_ignored():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


IGNORE_AGAIN_AND_AGAIN = """
import signal, time
from fedssl.core.signals import ignore_signal

signal.signal(signal.SIGINT, lambda *_: None)
print("ready", flush=True)
end = time.monotonic() + 2
while time.monotonic() < end:
    signal.signal(signal.SIGINT, lambda *_: None)
    ignore_signal(signal.SIGINT)
"""


def test_signals_that_arrive_while_they_become_ignored_print_nothing() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", IGNORE_AGAIN_AND_AGAIN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
