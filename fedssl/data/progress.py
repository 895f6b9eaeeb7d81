"""How long reading takes, told on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]
Advance = Callable[[int], None]

_SECONDS_BETWEEN_LINES = 10.0


def say_on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def say_nothing(line: str) -> None: ...


def on_a_terminal() -> bool:
    """Whether somebody watches. If not, what is said may be kept as a log, where names of private files must not be."""
    return sys.stderr.isatty()


def unnamed() -> str:
    """What to add where files would be named if it were not for that."""
    return "" if on_a_terminal() else " (files are named on a terminal only)"


@contextmanager
def meter(what: str, total: int | None, say: Say, *, size: bool = False) -> Iterator[Advance]:
    """Yield `advance(n)`, to be called as work gets done; `total` None: nobody knows; `size`: bytes."""
    if not on_a_terminal():
        yield _lines(what, total, say)
        return
    from rich import progress  # slow to import, and of no use without a terminal
    from rich.console import Console

    counts = progress.DownloadColumn() if size else progress.MofNCompleteColumn()
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), counts)
    with progress.Progress(*columns, progress.TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda amount: bar.advance(task, amount)


def _lines(what: str, total: int | None, say: Say) -> Advance:
    say(what)
    done, last = 0, time.monotonic()

    def advance(amount: int) -> None:
        nonlocal done, last
        done += amount
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(f"{what}: {done / total:.0%}" if total else f"{what}: {done:,}")

    return advance
