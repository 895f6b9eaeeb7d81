"""Compare runs without labels by the metrics of their last round."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedssl.core.console import duration, ignore_message
from fedssl.core.rich_console import wide_console
from fedssl.runs.rounds_log import read_rounds
from fedssl.runs.summary import RunSummary

METRICS = {
    "loss": "loss",
    "embedding_std": "embedding std",
    "effective_rank": "effective rank",
    "uniformity": "uniformity",
    "alignment": "alignment",
    "divergence": "divergence",
}
EXPLANATION = """\
medians over clients in the last round; no run has labelled test images, so no accuracy is compared
these metrics show runs that have failed, such as an embedding std or an effective rank that has
collapsed, but not which of two sound runs is better; compare only runs with the same method, batch
size and backbone. Labelled images give an accuracy, also of these runs: --set data.test=FOLDER"""


def without_labels(runs: Sequence[RunSummary]) -> bool:
    """True if all runs are measured and none has an accuracy."""
    return all(run.results and not run.results.get("table") for run in runs)


def compare_without_labels(runs: Sequence[RunSummary], as_json: bool) -> None:
    """Print the label-free metrics of runs without labelled test images."""
    rows = [_last_metrics(run) for run in runs]
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


def _last_metrics(run: RunSummary) -> dict[str, float | None]:
    """Return the median of each metric over the clients of the last round."""
    last: Mapping[str, Any] = {"clients": []}
    for line in read_rounds(run.folder / "rounds.jsonl", ignore_message):
        last = line
    metrics: dict[str, float | None] = {}
    for key in METRICS:
        values = []
        for client in last["clients"]:
            if client.get(key) is not None and not client.get("dropped"):
                values.append(client[key])
        metrics[key] = statistics.median(values) if values else None
    return metrics


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
