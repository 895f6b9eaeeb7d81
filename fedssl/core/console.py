"""Messages and progress on standard error: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from fedssl.core.ascii_output import encodable

Notify = Callable[[str], None]  # receives one line of output
ShowStep = Callable[[int, str], None]  # receives the number of finished steps and the next step

# The environment variable of processes whose standard error is written to a log.
HIDE_NAMES = "FEDSSL_HIDE_FILE_NAMES"
_names_hidden: ContextVar[bool] = ContextVar("names hidden", default=False)

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_STEPS = 5.0  # at first, then twice as long each time
_LONGEST_PAUSE = 60.0


class Advance(Protocol):
    """Receives the work done since the last call, and a note on it."""

    def __call__(self, amount: int, note: str = "") -> None:
        """Show the progress."""


def print_to_stderr(line: str) -> None:
    """Print a line on standard error at once."""
    # One write, so that no other thread writes between a line and its end.
    text = encodable(f"{line}\n", getattr(sys.stderr, "encoding", None) or "utf-8")
    print(text, end="", file=sys.stderr, flush=True)


def ignore_message(line: str) -> None:
    """Discard a line."""


def approximate_time(seconds: float) -> str:
    """Return an estimated time: "50 s", "12 min" or "3.5 h"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


def duration(seconds: float) -> str:
    """Return a time in hours, minutes and seconds: "1:02:03", "2:03" or "3 s"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def shortened(lines: Sequence[str], limit: int) -> list[str]:
    """Return the first lines, and the number of the others; a single other line is returned itself.

    It takes no more space than its number.
    """
    if len(lines) <= limit + 1:
        return list(lines)
    return [*lines[:limit], f"and {len(lines) - limit} more"]


def joined(names: Sequence[str], limit: int) -> str:
    """Join the first names, and the number of the others unless it is 1: "a, b and 2 more"."""
    shown = shortened(names, limit)
    if len(shown) == len(names):
        return ", ".join(names)
    return f"{', '.join(shown[:-1])} {shown[-1]}"


def stderr_is_terminal() -> bool:
    """True if standard error is a terminal."""
    return sys.stderr.isatty()


def names_are_shown() -> bool:
    """True if names of private files may be printed on standard error.

    On a terminal they always are. Elsewhere they are not printed by processes whose output fedssl
    writes to a log, nor on Flower, where the operator may read the output.
    """
    if stderr_is_terminal():
        return True
    return not _names_hidden.get() and HIDE_NAMES not in os.environ


@contextmanager
def names_hidden() -> Iterator[None]:
    """Print names of private files on a terminal only."""
    token = _names_hidden.set(True)
    try:
        yield
    finally:
        _names_hidden.reset(token)


def hidden_names_note() -> str:
    """Return the suffix of a message that leaves out file names, or "" if they are printed."""
    return "" if names_are_shown() else " (files are named on a terminal only)"


@contextmanager
def meter(
    description: str,
    total: int | None,
    notify: Notify,
    *,
    size: bool = False,
    done: int = 0,
) -> Iterator[Advance]:
    """Show the progress of some work; yield `advance(n)`, to be called as work is done.

    `total` is None if the amount is unknown; `size` means that amounts are bytes; `done` is the
    amount that an earlier process has done. Nothing is shown if messages are ignored.
    """
    if notify is ignore_message:
        yield lambda amount, note="": None
        return
    if not stderr_is_terminal():
        yield _print_lines(description, total, notify, done)
        return
    from rich import progress  # slow to import, and only used on a terminal

    from fedssl.core.rich_console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn() if size else progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}"),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total, completed=done, note="")
        yield lambda amount, note="": bar.update(task, advance=amount, note=note)


def _print_lines(description: str, total: int | None, notify: Notify, done: int) -> Advance:
    """Print the description now, and the progress every few seconds."""
    notify(description)
    last = time.monotonic()

    def advance(amount: int, note: str = "") -> None:
        nonlocal done, last
        done += amount
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            amount_done = f"{done / total:.0%}" if total else f"{done:,}"
            notify(f"{description}: {amount_done}  {note}".rstrip())

    return advance


@contextmanager
def steps(title: str, total: int, notify: Notify) -> Iterator[ShowStep]:
    """Show which of `total` steps is under way; yield `show(finished, step)`.

    Without a terminal, the present step is printed after 5 s, 15 s, 35 s, … and finally every
    minute: short work prints nothing, and the log of long work stays short. Nothing is shown if
    messages are ignored.
    """
    if notify is ignore_message:
        yield lambda finished, step: None
        return
    if not stderr_is_terminal():
        with _print_steps(title, total, notify) as print_step:
            yield print_step
        return
    from rich import progress

    from fedssl.core.rich_console import Console

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        def show(finished: int, step: str) -> None:
            bar.update(task, completed=finished, description=f"{title}: {step}")

        yield show


def growing_pauses(first: float) -> Iterator[float]:
    """Yield seconds between lines, each twice the one before, up to a minute."""
    pause = first
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE)


@contextmanager
def _print_steps(title: str, total: int, notify: Notify) -> Iterator[ShowStep]:
    """Print the present step now and then, from a thread: one step may take minutes."""
    present = ""
    start = time.monotonic()
    ended = threading.Event()

    def show(finished: int, step: str) -> None:
        nonlocal present
        present = f"{step} (step {finished + 1} of {total})"

    def print_lines() -> None:
        pauses = growing_pauses(_SECONDS_BETWEEN_STEPS)
        while not ended.wait(next(pauses)):
            if present:
                elapsed = duration(time.monotonic() - start)
                notify(f"{title}: {present}, {elapsed} elapsed")

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield show
    finally:
        ended.set()
        thread.join()
