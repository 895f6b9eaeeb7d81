"""Compare runs without labels by the metrics of their last round."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedssl.core.console import duration
from fedssl.core.rich_console import wide_console
from fedssl.runs.label_free import EXPLANATION, METRICS, last_metrics
from fedssl.runs.summary import RunSummary


def compare_without_labels(runs: Sequence[RunSummary], as_json: bool) -> None:
    """Print the label-free metrics of runs without labelled test images."""
    rows = [last_metrics(run) for run in runs]
    if as_json:
        values = []
        for run, row in zip(runs, rows, strict=True):
            values.append({"run": str(run.folder), "seconds": run.seconds, **row})
        print(json.dumps({"label_free": values}))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("run")
    for heading in METRICS.values():
        table.add_column(heading, justify="right")
    table.add_column("training time", justify="right")
    for run, row in zip(runs, rows, strict=True):
        cells = [_number(row[key]) for key in METRICS]
        table.add_row(Text(run.folder.name), *cells, duration(run.seconds))
    wide_console().print(table)
    print(EXPLANATION)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
