"""How a fine-tuning goes on, told to a person: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedssl.data.progress import Say
from fedssl.finetune.training import Progress

_SECONDS_BETWEEN_LINES = 10.0


class Lines:
    """The first and the last record, and one every few seconds."""

    def __init__(self, say: Say) -> None:
        self.say, self._last = say, 0.0

    def line(self, line: dict[str, Any]) -> None:
        if line["iteration"] == line["of"] or time.monotonic() - self._last > _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self.say(f"iteration {line['iteration']:,}/{line['of']:,}  {_note(line)}")


class Bar:
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar, self._task = bar, task

    def line(self, line: dict[str, Any]) -> None:
        self._bar.update(self._task, completed=line["iteration"], note=_note(line))


def _note(line: dict[str, Any]) -> str:
    return f"loss {line['loss']:.4f}  {line['images_per_s']:,.1f} images/s"


@contextmanager
def telling(done: int, iterations: int, say: Say, quiet: bool) -> Iterator[Progress]:
    """The progress that fits where standard error goes."""
    if quiet or not sys.stderr.isatty():
        yield Lines(say)
        return
    from rich import progress
    from rich.console import Console

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
        yield Bar(bar, bar.add_task("", total=iterations, completed=done, note=""))
