"""Read the rounds of a run: series by round, overall and by client, and what the guard reported."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from fedssl.core.console import ignore_message
from fedssl.core.errors import FedsslError
from fedssl.experiment.experiment import Experiment
from fedssl.runs.collapse_warning import Collapse
from fedssl.runs.round_warnings import ChanceLoss, NearChance, loss_and_chance
from fedssl.runs.rounds_log import read_rounds
from fedssl.runs.start_warnings import warn
from fedssl.runs.summary import RunSummary

Values = list[float | None]

# Of clients, in the order of charts, with their names.
CLIENT_METRICS = {
    "loss": "loss",
    "divergence": "divergence",
    "effective_rank": "effective rank",
    "embedding_std": "embedding std",
    "alignment": "alignment",
    "uniformity": "uniformity",
}
HINTS = {
    "divergence": "how far a client moves the model in a round",
    "effective_rank": "dimensions that features use; it falls in a collapse",
    "embedding_std": "1: embeddings are far apart, 0: all are alike",
    "alignment": "distance between views of one image",
    "uniformity": "lower: features are spread more evenly",
}
ROUND_METRICS = ("loss", "knn", "knn_common", "knn_on", "lr", "seconds", "images_per_s")
NOTE = "notes."  # begins the metrics that an algorithm adds


class Event(NamedTuple):
    """An upload that was dropped, clipped or used in part."""

    round: int
    client: str
    kind: str
    reason: str


class Training:
    """The finished rounds of a run."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.overall: dict[str, Values] = {}
        self.clients: dict[str, dict[str, Values]] = {}  # by client and metric
        self.events: list[Event] = []
        self.failed: list[int] = []
        self.warnings: list[str] = []
        self.codes: dict[str, None] = {}
        self.images: dict[str, int] = {}  # that a client processed in a round, at most
        self.privacy: Mapping[str, Any] | None = None  # after the last round
        self.total_up = 0
        self.total_down = 0

    @property
    def seconds(self) -> float:
        """The time of all rounds, without measurements."""
        return sum(filter(None, self.overall.get("seconds", [])))

    def metrics(self) -> list[str]:
        """Return the metrics that clients have, the known ones first."""
        names: dict[str, None] = {}
        for metric in CLIENT_METRICS:
            if any(metric in series for series in self.clients.values()):
                names[metric] = None
        for series in self.clients.values():
            names |= dict.fromkeys(series)
        return list(names)

    def median(self, metric: str, position: int) -> float | None:
        """Return the median of a metric over the clients that have it in a round."""
        known = self.known(metric, position)
        return statistics.median(known) if known else None

    def known(self, metric: str, position: int) -> list[float]:
        """Return a metric of the clients that have it in a round; `position` counts from 0."""
        found = []
        for series in self.clients.values():
            value = series.get(metric, [None] * (position + 1))[position]
            if value is not None:
                found.append(value)
        return found

    def add_warning(self, text: str) -> None:
        """Add a warning, which needs no such word before it on a page."""
        self.warnings.append(text.removeprefix("warning: "))

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the record of a round."""
        self.rounds.append(line["round"])
        for metric in ROUND_METRICS:
            self.append(self.overall, metric, line.get(metric))
        if line.get("failed"):
            self.failed.append(line["round"])
        if line.get("code"):
            self.codes[line["code"]] = None
        if line.get("privacy") is not None:
            self.privacy = line["privacy"]
            self.append(self.overall, "epsilon", line["privacy"].get("epsilon"))
        self._add_clients(line)

    def _add_clients(self, line: Mapping[str, Any]) -> None:
        used = 0
        up = 0
        down = 0
        for client in line.get("clients", ()):
            up += client.get("bytes_up") or 0
            down += client.get("bytes_down") or 0
            used += not client.get("dropped")
            name = client["client"]
            self.images[name] = max(self.images.get(name, 0), client.get("images") or 0)
            series = self.clients.setdefault(name, {})
            for metric, value in _client_values(client):
                self.append(series, metric, value)
            self.events += _events(line["round"], client)
        self.total_up += up
        self.total_down += down
        self.append(self.overall, "up", up)
        self.append(self.overall, "down", down)
        self.append(self.overall, "used", used)
        self.append(self.overall, "asked", len(line.get("clients", ())))

    def append(self, series: dict[str, Values], metric: str, value: Any) -> None:
        """Append a value of the present round; None for a missing one or one that is not finite."""
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            value = None
        values = series.setdefault(metric, [])
        values += [None] * (len(self.rounds) - 1 - len(values))
        if len(values) < len(self.rounds):  # a client may train twice in a round
            values.append(value)

    def finish(self) -> None:
        """Give all series one value for each round."""
        for series in (self.overall, *self.clients.values()):
            for values in series.values():
                values += [None] * (len(self.rounds) - len(values))


def _client_values(client: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for metric in CLIENT_METRICS:
        if client.get(metric) is not None:
            yield metric, client[metric]
    for name, value in client.get("notes", {}).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{NOTE}{name}", value


def _events(round: int, client: Mapping[str, Any]) -> Iterator[Event]:
    """Yield what the guard reported about a client in a round."""
    name = client["client"]
    if client.get("dropped"):
        yield Event(round, name, "dropped", str(client["dropped"]))
    if client.get("clipped") is not None:
        yield Event(round, name, "clipped", f"update scaled by {client['clipped']:.3g}")
    if client.get("rows_left_out"):
        yield Event(round, name, "features left out", str(client["rows_left_out"]))


def read_training(run: RunSummary) -> Training:
    """Return the rounds of a run with the warnings that they cause."""
    training = Training()
    chance_loss = _chance_loss(run.experiment)
    detectors: list[Collapse | NearChance] = [Collapse()]
    if chance_loss is not None:
        detectors.append(NearChance(chance_loss))
    warn(run.experiment, training.add_warning)
    for line in read_rounds(run.folder / "rounds.jsonl", ignore_message):
        training.add(line)
        if not line.get("clients"):
            continue
        for detector in detectors:
            warning = detector.update(line)
            if warning is not None:
                training.warnings.append(f"round {line['round']}: {warning}")
        if chance_loss is not None:
            compared = loss_and_chance(line, chance_loss)
            if compared is not None:
                training.append(training.overall, "chance", compared[1])
    training.finish()
    return training


def _chance_loss(experiment: Experiment) -> ChanceLoss | None:
    """Return the loss of random guessing; None if the method cannot be built without images."""
    try:
        method = experiment.method_without_memory()
    except (FedsslError, RuntimeError, ValueError):
        return None
    return partial(experiment.algorithm.chance_loss, method)
