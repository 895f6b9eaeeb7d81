"""Messages and progress on standard error: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Notify = Callable[[str], None]  # receives one line of output
Advance = Callable[[int], None]  # receives the amount of work done since the last call

_SECONDS_BETWEEN_LINES = 10.0


def print_to_stderr(line: str) -> None:
    """Print a line on standard error at once."""
    # One write, so that no other thread writes between a line and its end.
    print(f"{line}\n", end="", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return a time in hours, minutes and seconds: "1:02:03", "2:03" or "3 s"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def rough_duration(seconds: float) -> str:
    """Return an estimated time in one unit: "50 s", "4 min" or "2.5 hours"."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} hours"


def ignore_message(line: str) -> None:
    """Discard a line."""


def stderr_is_terminal() -> bool:
    """True if standard error is a terminal.

    If not, output may be kept as a log, which must not contain names of private files.
    """
    return sys.stderr.isatty()


def hidden_names_note() -> str:
    """Return the suffix of a message that leaves out file names, or "" on a terminal."""
    return "" if stderr_is_terminal() else " (files are named on a terminal only)"


@contextmanager
def meter(
    description: str, total: int | None, notify: Notify, *, size: bool = False
) -> Iterator[Advance]:
    """Show the progress of some work; yield `advance(n)`, to be called as work is done.

    `total` is None if the amount is unknown; `size` means that amounts are bytes.
    """
    if not stderr_is_terminal():
        yield _print_lines(description, total, notify)
        return
    from rich import progress  # slow to import, and only used on a terminal
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn() if size else progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)


def _print_lines(description: str, total: int | None, notify: Notify) -> Advance:
    """Print the description now, and the progress every few seconds."""
    notify(description)
    done = 0
    last = time.monotonic()

    def advance(amount: int) -> None:
        nonlocal done, last
        done += amount
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            amount_done = f"{done / total:.0%}" if total else f"{done:,}"
            notify(f"{description}: {amount_done}")

    return advance
