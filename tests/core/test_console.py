"""Progress on a terminal and elsewhere."""

import io
import sys

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
