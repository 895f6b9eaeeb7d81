"""Progress on a terminal and elsewhere."""

import io
import sys
import threading
from itertools import islice

from fedssl.core import console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar(monkeypatch):
    lines = []
    monkeypatch.setattr(sys, "stderr", Terminal())
    for size in (True, False):
        with console.meter("reading", 2000, lines.append, size=size) as advance:
            advance(2000)
    shown = sys.stderr.getvalue()
    assert "2.0/2.0 kB" in shown
    assert "2000/2000" in shown
    assert lines == []


def test_elsewhere_plain_lines_are_printed_now_and_then(monkeypatch):
    lines = []
    clock = [0.0]
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    with console.meter("reading", 40, lines.append) as advance:
        for seconds in (1, 11, 12, 25):
            clock[0] = seconds
            advance(10)
    assert lines == ["reading", "reading: 50%", "reading: 100%"]
    assert sys.stderr.getvalue() == ""
    with console.meter("listing", None, lines.append) as advance:
        clock[0] = 100
        advance(1234)
    assert lines[-1] == "listing: 1,234"


def test_resumed_work_starts_where_it_stopped_and_shows_notes(monkeypatch):
    """30 of 40 are done before: 10 more are 100%."""
    lines = []
    clock = [0.0]
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    with console.meter("training", 40, lines.append, done=30) as advance:
        clock[0] = 11
        advance(10, "loss 0.5")
    assert lines == ["training", "training: 100%  loss 0.5"]
    monkeypatch.setattr(sys, "stderr", Terminal())
    with console.meter("training", 40, lines.append, done=30) as advance:
        advance(5, "loss 0.5")
    assert "35/40" in sys.stderr.getvalue()
    assert "loss 0.5" in sys.stderr.getvalue()


def test_a_terminal_shows_the_present_step(monkeypatch):
    lines = []
    monkeypatch.setattr(sys, "stderr", Terminal())
    with console.steps("measuring", 4, lines.append) as show:
        show(1, "model global, linear probe")
    shown = sys.stderr.getvalue()
    assert "measuring: model global, linear probe" in shown
    assert "1/4" in shown
    assert lines == []


def test_pauses_between_lines_grow_to_a_minute():
    """After 5, 15, 35, 75 and 135 s, then every minute."""
    assert list(islice(console.growing_pauses(5), 6)) == [5, 10, 20, 40, 60, 60]


def test_elsewhere_a_step_is_printed_now_and_then(monkeypatch):
    """One step takes as long as two intervals."""
    printed = threading.Semaphore(0)
    lines = []

    def notify(line):
        lines.append(line.rpartition(",")[0])
        printed.release()

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(console, "_SECONDS_BETWEEN_STEPS", 0.01)
    with console.steps("measuring", 2, notify) as show:
        for finished in (0, 1):
            show(finished, f"probe {finished}")
            for _ in range(2):
                assert printed.acquire(timeout=60)
    assert list(dict.fromkeys(lines)) == [
        "measuring: probe 0 (step 1 of 2)",
        "measuring: probe 1 (step 2 of 2)",
    ]


def test_short_work_prints_no_steps(monkeypatch):
    lines = []
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with console.steps("measuring", 2, lines.append) as show:
        show(0, "probe 0")
    assert lines == []


def test_a_quiet_command_shows_no_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with console.meter("reading", 2, console.ignore_message) as advance:
        advance(2)
    with console.steps("measuring", 2, console.ignore_message) as show:
        show(0, "probe 0")
    assert sys.stderr.getvalue() == ""


def test_a_single_other_name_is_shown_instead_of_its_number():
    names = ["a", "b", "c", "d"]
    assert console.shortened(names, 3) == names
    assert console.shortened(names, 2) == ["a", "b", "and 2 more"]
    assert console.joined(names, 4) == console.joined(names, 3) == "a, b, c, d"
    assert console.joined(names, 2) == "a, b and 2 more"
