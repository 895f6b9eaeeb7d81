"""Read the label-free metrics of a run's last round, for runs without labelled test images."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedssl.core.console import ignore_message
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


def last_metrics(run: RunSummary) -> dict[str, float | None]:
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
