"""Show the progress of a run on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from fedssl.core.console import print_to_stderr
from fedssl.engine.uploads.records import Reply
from fedssl.runs.time_left import Pace


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


def summary(line: dict[str, Any], rounds: int, times: str = "") -> str:
    """Return one line about a finished round; `times` are the time elapsed and the time left."""
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
    if "knn_on" in line:
        parts.append(f"kNN on other images {line['knn_on']:.1f}%")
    parts += _epsilon(line)
    if times:
        parts.append(times)
    for client in dropped:
        parts.append(f"client {client['client']} dropped: {client['dropped']}")
    for client in clients:
        if "rows_left_out" in client:
            parts.append(f"client {client['client']}: {client['rows_left_out']}")
    return "  ".join(parts)


def _epsilon(line: dict[str, Any]) -> list[str]:
    """Return the privacy spent so far, if a round has some."""
    if "privacy" not in line:
        return []
    epsilon = line["privacy"]["epsilon"]
    if epsilon is None:
        return ["no ε"]
    return [f"ε {epsilon:.3g}"]


def _any_dropped(line: dict[str, Any]) -> bool:
    """True if an upload, or some rows of one, were dropped."""
    return any(client["dropped"] or "rows_left_out" in client for client in line["clients"])


class Lines:
    """Print a line per round, or every few seconds if rounds are short.

    Rounds with a measurement, a failure or a dropped upload are always printed, and so are the
    first and the last one.
    """

    def __init__(self, title: str, pace: Pace, every: float = 5.0) -> None:
        self.title = title
        self.every = every
        self._pace = pace
        self._last = 0.0

    def client(self, reply: Reply) -> None:
        """Count a client; print the estimated time when it is possible."""
        self._print(self._pace.finish_client())

    def round(self, line: dict[str, Any]) -> None:
        """Print a finished round if it is due."""
        estimate = self._pace.finish_round(line["round"])
        due = time.monotonic() - self._last > self.every
        if due or self._important(line):
            self._last = time.monotonic()
            self._print(summary(line, self._pace.rounds, self._pace.summary()))
        self._print(estimate)

    def _print(self, text: str | None) -> None:
        if text is not None:
            print_to_stderr(f"{self.title}: {text}")

    def _important(self, line: dict[str, Any]) -> bool:
        if line["knn"] is not None or "knn_on" in line or line["failed"]:
            return True
        return line["round"] in (1, self._pace.rounds) or _any_dropped(line)


class Bars:
    """Show one bar that counts client-rounds, with images/s, the last kNN and the time left."""

    def __init__(self, bar: Any, task: Any, title: str, pace: Pace) -> None:
        self._bar = bar
        self._task = task
        self._title = title
        self._pace = pace
        self._knn = ""
        self._knn_on = ""

    def client(self, reply: Reply) -> None:
        """Advance the bar by one client."""
        estimate = self._pace.finish_client()
        self._bar.update(self._task, advance=1, left=self._pace.left_text())
        self._print(estimate)

    def round(self, line: dict[str, Any]) -> None:
        """Update the bar; print the round above it if an upload was dropped."""
        estimate = self._pace.finish_round(line["round"])
        rounds = self._pace.rounds
        if line["knn"] is not None:
            self._knn = f"kNN {line['knn']:.1f}%  "
        if "knn_on" in line:
            self._knn_on = f"on other images {line['knn_on']:.1f}%  "
        if _any_dropped(line):
            self._print(summary(line, rounds))
        loss = ""
        speed = ""
        if line["loss"] is not None:
            loss = f"loss {line['loss']:.4f}  "
            speed = f"{line['images_per_s']:,.0f} images/s"
        self._bar.update(
            self._task,
            completed=line["round"] * self._pace.per_round,
            description=f"{self._title}  round {line['round']}/{rounds}",
            note="  ".join([*_epsilon(line), f"{loss}{self._knn}{self._knn_on}{speed}"]),
            left=self._pace.left_text(),
        )
        self._print(estimate)

    def _print(self, text: str | None) -> None:
        if text is not None:
            self._bar.console.print(f"{self._title}: {text}", markup=False)


@contextmanager
def round_progress(title: str, pace: Pace, quiet: bool) -> Iterator[Progress]:
    """Show progress as it suits standard error."""
    if quiet:
        yield Silent()
        return
    if not sys.stderr.isatty():
        yield Lines(title, pace)
        return
    from rich import progress

    from fedssl.core.rich_console import Console

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[note]}"),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[left]}"),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(
            f"{title}  round {pace.done}/{pace.rounds}",
            total=pace.rounds * pace.per_round,
            completed=pace.done * pace.per_round,
            note="",
            left="",
        )
        yield Bars(bar, task, title, pace)
