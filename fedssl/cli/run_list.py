"""Print the run directories in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedssl.core.console import duration, print_to_stderr, shortened
from fedssl.core.errors import ConfigError, FedsslError
from fedssl.core.missing_paths import no_folder
from fedssl.core.rich_console import wide_console
from fedssl.runs.comparable import unusual_probes
from fedssl.runs.directories import RUNS
from fedssl.runs.summary import Difference, RunSummary, find_runs, nearest_differences, summarise

MARK = "*"  # of accuracies that were measured with other settings than those of most runs
MAX_NAMES = 3  # of runs in a line below the table


def print_runs(folder: Path, as_json: bool) -> None:
    """Print a line for each run in a folder, in the order in which they were last trained."""
    if not folder.is_dir():
        hint = ""
        if folder == RUNS:
            hint = ": `fedssl run` creates it"
        raise ConfigError(no_folder(folder, hint))
    summaries = _readable(find_runs(folder))
    if not summaries:
        raise ConfigError(f"there is no run directory in {folder}")
    summaries.sort(key=lambda run: run.changed)
    if as_json:
        print(json.dumps(_as_values(summaries)))
    else:
        console = wide_console()
        probes = unusual_probes(summaries)
        console.print(_table(summaries, probes))
        for note in _probe_notes(summaries, probes):
            console.print(Text(note))


def _readable(folders: Sequence[Path]) -> list[RunSummary]:
    """Return the summaries of all runs; print which cannot be read."""
    summaries = []
    for folder in folders:
        try:
            summaries.append(summarise(folder))
        except FedsslError as problem:
            print_to_stderr(f"{folder}: {problem}")
    return summaries


def _table(summaries: Sequence[RunSummary], probes: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("kNN", justify="right")
    table.add_column("linear", justify="right")
    table.add_column("training time", justify="right")
    table.add_column("last trained")
    table.add_column("differs from an earlier run in")
    differences = nearest_differences(summaries)
    for run, difference, probe in zip(summaries, differences, probes, strict=True):
        mark = MARK if probe else ""
        width = len(MARK) if any(probes) else 0  # numbers stay below each other
        table.add_row(
            Text(run.folder.name),
            run.state,
            _percent(run.accuracy("knn"), mark.ljust(width)),
            _percent(run.accuracy("linear"), mark.ljust(width)),
            duration(run.seconds),
            f"{run.changed:%Y-%m-%d %H:%M}",
            Text(_difference_text(difference)),
        )
    return table


def _difference_text(difference: Difference) -> str:
    """Return "demo: rounds=16"; "" for a first run."""
    if not difference.text:
        return ""
    return f"{difference.other}: {difference.text}"


def _percent(accuracy: float | None, mark: str) -> Text:
    return Text("" if accuracy is None else f"{accuracy:.1f}{mark}")


def _probe_notes(summaries: Sequence[RunSummary], probes: Sequence[str]) -> list[str]:
    """Return the lines below the table, one for each way in which probe settings differ."""
    names: dict[str, list[str]] = {}
    for run, probe in zip(summaries, probes, strict=True):
        if probe:
            names.setdefault(probe, []).append(run.folder.name)
    notes = []
    for probe, marked in names.items():
        # The mark is the same for all: if there are several lines, each names its runs.
        listed = f"{', '.join(shortened(marked, MAX_NAMES))}: " if len(names) > 1 else ""
        notes.append(f"{MARK} {listed}measured with {probe}")
    if notes:
        notes.append(
            "`fedssl compare` compares only runs that were measured with the same settings"
        )
    return notes


def _as_values(summaries: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """Return the list as plain values."""
    values = []
    differences = nearest_differences(summaries)
    probes = unusual_probes(summaries)
    for run, difference, probe in zip(summaries, differences, probes, strict=True):
        values.append(
            {
                "dir": str(run.folder),
                "state": run.state,
                "rounds": run.rounds,
                "seconds": run.seconds,
                "knn": run.accuracy("knn"),
                "linear": run.accuracy("linear"),
                "differs_in": difference.text,
                "differs_from": difference.other,
                "probe_differs_in": probe,
            }
        )
    return values
