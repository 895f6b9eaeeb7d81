"""Show the progress of a fine-tuning: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedssl.core.console import Notify
from fedssl.object_detection.training import Progress

_SECONDS_BETWEEN_LINES = 10.0


class LineProgress:
    """Prints the first and the last record, and one every few seconds."""

    def __init__(self, notify: Notify) -> None:
        self._say = notify
        self._last = 0.0

    def update(self, record: dict[str, Any]) -> None:
        """Print a record if it is the last, or if enough time has passed."""
        is_last = record["iteration"] == record["of"]
        if is_last or time.monotonic() - self._last > _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self._say(f"iteration {record['iteration']:,}/{record['of']:,}  {_note(record)}")


class BarProgress:
    """Updates a progress bar of rich."""

    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    def update(self, record: dict[str, Any]) -> None:
        """Move the bar to the record's iteration."""
        self._bar.update(self._task, completed=record["iteration"], note=_note(record))


def _note(record: dict[str, Any]) -> str:
    return f"loss {record['loss']:.4f}  {record['images_per_s']:,.1f} images/s"


@contextmanager
def show_progress(done: int, iterations: int, notify: Notify, *, quiet: bool) -> Iterator[Progress]:
    """Yield a progress bar if standard error is a terminal, else plain lines."""
    if quiet or not sys.stderr.isatty():
        yield LineProgress(notify)
        return
    from rich import progress

    from fedssl.core.rich_console import Console

    columns = (
        progress.TextColumn("fine-tuning"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[note]}"),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=iterations, completed=done, note="")
        yield BarProgress(bar, task)
