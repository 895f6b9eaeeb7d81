"""Show the progress of a run on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from fedssl.engine.uploads.records import Reply


class Progress(Protocol):
    """Shows which clients and rounds are finished."""

    def client(self, reply: Reply) -> None:
        """Count a client that has finished its part of the round; called from any thread."""

    def round(self, line: dict[str, Any]) -> None:
        """Show a finished round; `line` is its record."""


class Silent:
    """Shows nothing."""

    def client(self, reply: Reply) -> None:
        """Do nothing."""

    def round(self, line: dict[str, Any]) -> None:
        """Do nothing."""


def summary(line: dict[str, Any], rounds: int) -> str:
    """Return one line about a finished round."""
    clients = line["clients"]
    dropped = [client for client in clients if client["dropped"]]
    parts = [
        f"round {line['round']}/{rounds}",
        f"{len(clients) - len(dropped)}/{len(clients)} clients",
    ]
    if line["loss"] is not None:
        parts.append(f"loss {line['loss']:.4f}")
        parts.append(f"{line['images_per_s']:,.0f} images/s")
    if line["knn"] is not None:
        parts.append(f"kNN {line['knn']:.1f}%")
    for client in dropped:
        parts.append(f"client {client['client']} dropped: {client['dropped']}")
    for client in clients:
        if "rows_left_out" in client:
            parts.append(f"client {client['client']}: {client['rows_left_out']}")
    return "  ".join(parts)


def _any_dropped(line: dict[str, Any]) -> bool:
    """True if an upload, or some rows of one, were dropped."""
    return any(client["dropped"] or "rows_left_out" in client for client in line["clients"])


class Lines:
    """Print a line per round, or every few seconds if rounds are short.

    Rounds with a measurement, a failure or a dropped upload are always printed, and so are the
    first and the last one.
    """

    def __init__(self, title: str, rounds: int, every: float = 5.0) -> None:
        self.title = title
        self.rounds = rounds
        self.every = every
        self._last = 0.0

    def client(self, reply: Reply) -> None:
        """Do nothing: only rounds are printed."""

    def round(self, line: dict[str, Any]) -> None:
        """Print a finished round if it is due."""
        due = time.monotonic() - self._last > self.every
        if not due and not self._important(line):
            return
        self._last = time.monotonic()
        # One write, so that nothing comes between a line and its end.
        text = f"{self.title}: {summary(line, self.rounds)}\n"
        print(text, end="", file=sys.stderr, flush=True)

    def _important(self, line: dict[str, Any]) -> bool:
        if line["knn"] is not None or line["failed"]:
            return True
        return line["round"] in (1, self.rounds) or _any_dropped(line)


class Bars:
    """Show one bar that counts client-rounds, with images/s, the last kNN and the time left."""

    def __init__(self, bar: Any, task: Any, title: str, rounds: int, per_round: int) -> None:
        self._bar = bar
        self._task = task
        self._title = title
        self._rounds = rounds
        self._per_round = per_round
        self._knn = ""
        self._lock = threading.Lock()

    def client(self, reply: Reply) -> None:
        """Advance the bar by one client."""
        with self._lock:
            self._bar.advance(self._task, 1)

    def round(self, line: dict[str, Any]) -> None:
        """Update the bar; print the round above it if an upload was dropped."""
        if line["knn"] is not None:
            self._knn = f"kNN {line['knn']:.1f}%  "
        if _any_dropped(line):
            self._bar.console.print(f"{self._title}: {summary(line, self._rounds)}", markup=False)
        loss = f"loss {line['loss']:.4f}  " if line["loss"] is not None else ""
        self._bar.update(
            self._task,
            completed=line["round"] * self._per_round,
            description=f"{self._title}  round {line['round']}/{self._rounds}",
            note=f"{loss}{self._knn}{line['images_per_s']:,.0f} images/s",
        )


@contextmanager
def round_progress(
    title: str, rounds: int, done: int, per_round: int, quiet: bool
) -> Iterator[Progress]:
    """Show progress as it suits standard error. `per_round`: clients asked in a round."""
    if quiet:
        yield Silent()
        return
    if not sys.stderr.isatty():
        yield Lines(title, rounds)
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[note]}"),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{title}  round {done}/{rounds}", total=rounds * per_round, note="")
        bar.update(task, completed=done * per_round)
        yield Bars(bar, task, title, rounds=rounds, per_round=per_round)
