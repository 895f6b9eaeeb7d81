"""Print the run directories in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedssl.core.console import duration, print_to_stderr
from fedssl.core.errors import ConfigError, FedsslError
from fedssl.core.rich_console import wide_console
from fedssl.runs.summary import RunSummary, find_runs, nearest_differences, summarise


def print_runs(folder: Path, as_json: bool) -> None:
    """Print a line for each run in a folder, in the order in which they were last trained."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: `fedssl run` creates it")
    summaries = _readable(find_runs(folder))
    if not summaries:
        raise ConfigError(f"there is no run directory in {folder}")
    summaries.sort(key=lambda run: run.changed)
    if as_json:
        print(json.dumps(_as_values(summaries)))
    else:
        wide_console().print(_table(summaries))


def _readable(folders: Sequence[Path]) -> list[RunSummary]:
    """Return the summaries of all runs; print which cannot be read."""
    summaries = []
    for folder in folders:
        try:
            summaries.append(summarise(folder))
        except FedsslError as problem:
            print_to_stderr(f"{folder}: {problem}")
    return summaries


def _table(summaries: Sequence[RunSummary]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("kNN", justify="right")
    table.add_column("linear", justify="right")
    table.add_column("training time", justify="right")
    table.add_column("last trained")
    table.add_column("differs in")
    for run, difference in zip(summaries, nearest_differences(summaries), strict=True):
        table.add_row(
            Text(run.folder.name),
            run.state,
            _percent(run.accuracy("knn")),
            _percent(run.accuracy("linear")),
            duration(run.seconds),
            f"{run.changed:%Y-%m-%d %H:%M}",
            Text(difference),
        )
    return table


def _percent(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.1f}"


def _as_values(summaries: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """Return the list as plain values."""
    values = []
    for run, difference in zip(summaries, nearest_differences(summaries), strict=True):
        values.append(
            {
                "dir": str(run.folder),
                "state": run.state,
                "rounds": run.rounds,
                "seconds": run.seconds,
                "knn": run.accuracy("knn"),
                "linear": run.accuracy("linear"),
                "differs_in": difference,
            }
        )
    return values
