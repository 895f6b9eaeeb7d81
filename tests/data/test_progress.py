import io
import sys

from fedssl.data import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar(monkeypatch):
    said = []
    monkeypatch.setattr(sys, "stderr", Terminal())
    for size in (True, False):
        with progress.meter("reading", 2000, said.append, size=size) as advance:
            advance(2000)
    shown = sys.stderr.getvalue()
    assert "2.0/2.0 kB" in shown
    assert "2000/2000" in shown
    assert said == []


def test_elsewhere_plain_lines_come_now_and_then(monkeypatch):
    said, clock = [], [0.0]
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress.meter("reading", 40, said.append) as advance:
        for seconds in (1, 11, 12, 25):
            clock[0] = seconds
            advance(10)
    assert said == ["reading", "reading: 50%", "reading: 100%"]
    assert sys.stderr.getvalue() == ""
    with progress.meter("listing", None, said.append) as advance:
        clock[0] = 100
        advance(1234)
    assert said[-1] == "listing: 1,234"
