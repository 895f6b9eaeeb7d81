"""How a run goes on, told to a person: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from fedssl.guard import Reply


class Progress(Protocol):
    def client(self, reply: Reply) -> None:
        """A client has finished its share of the round; called from the clients' threads."""

    def round(self, line: dict[str, Any]) -> None:
        """A round is finished; `line` is its record."""


class Silent:
    def client(self, reply: Reply) -> None: ...

    def round(self, line: dict[str, Any]) -> None: ...


def summary(line: dict[str, Any], rounds: int) -> str:
    """A round in one line."""
    asked, dropped = len(line["clients"]), [c for c in line["clients"] if c["dropped"]]
    parts = [f"round {line['round']}/{rounds}", f"{asked - len(dropped)}/{asked} clients"]
    if line["loss"] is not None:
        parts += [f"loss {line['loss']:.4f}", f"{line['images_per_s']:,.0f} images/s"]
    if line["knn"] is not None:
        parts.append(f"kNN {line['knn']:.1f}%")
    parts += [f"client {c['client']} dropped: {c['dropped']}" for c in dropped]
    parts += [f"client {c['client']}: {c['rows_left_out']}" for c in line["clients"] if "rows_left_out" in c]
    return "  ".join(parts)


def _amiss(line: dict[str, Any]) -> bool:
    """Whether not all that clients have sent counts."""
    return any(c["dropped"] or "rows_left_out" in c for c in line["clients"])


class Lines:
    """One line per round, or per few seconds when rounds are quick; lines with a measurement always."""

    def __init__(self, title: str, rounds: int, every: float = 5.0) -> None:
        self.title, self.rounds, self.every = title, rounds, every
        self._last = 0.0

    def client(self, reply: Reply) -> None: ...

    def round(self, line: dict[str, Any]) -> None:
        worth = line["knn"] is not None or line["failed"] or line["round"] in (1, self.rounds)
        if worth or _amiss(line) or time.monotonic() - self._last > self.every:
            self._last = time.monotonic()
            # In one piece, so that nothing comes between a line and its end.
            print(f"{self.title}: {summary(line, self.rounds)}\n", end="", file=sys.stderr, flush=True)


class Bars:
    """One bar that counts client-rounds, with images/s, the last measurement and the time left."""

    def __init__(self, bar: Any, task: Any, title: str, rounds: int, per_round: int) -> None:
        self._bar, self._task, self._title = bar, task, title
        self._rounds, self._per_round = rounds, per_round
        self._knn, self._lock = "", threading.Lock()

    def client(self, reply: Reply) -> None:
        with self._lock:
            self._bar.advance(self._task, 1)

    def round(self, line: dict[str, Any]) -> None:
        if line["knn"] is not None:
            self._knn = f"kNN {line['knn']:.1f}%  "
        if _amiss(line):
            self._bar.console.print(f"{self._title}: {summary(line, self._rounds)}", markup=False)
        loss = f"loss {line['loss']:.4f}  " if line["loss"] is not None else ""
        self._bar.update(
            self._task,
            completed=line["round"] * self._per_round,
            description=f"{self._title}  round {line['round']}/{self._rounds}",
            note=f"{loss}{self._knn}{line['images_per_s']:,.0f} images/s",
        )


@contextmanager
def telling(title: str, rounds: int, done: int, per_round: int, quiet: bool) -> Iterator[Progress]:
    """The progress that fits where standard error goes. `per_round`: clients asked in a round."""
    if quiet or not sys.stderr.isatty():
        yield Silent() if quiet else Lines(title, rounds)
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
        yield Bars(bar, task, title, rounds, per_round)
