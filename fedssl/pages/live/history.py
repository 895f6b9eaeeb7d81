"""What the page shows of a run's finished rounds: values for charts, and each client's last."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, NamedTuple

from fedssl.runs.collapse_warning import Collapse
from fedssl.runs.live_file import LiveWarning

MAX_LINES = 7  # clients with lines of their own in a chart; of more, quartiles are drawn
RECENT = 10  # rounds from which the time per round is estimated
Quartiles = tuple[float, float, float]
METRICS = ("divergence", "effective_rank")  # of clients, which have charts


class RoundPoint(NamedTuple):
    """One round in the charts."""

    round: int
    loss: float | None
    knn: float | None
    knn_common: float | None
    knn_on: float | None  # on the images of `probe.on`
    epsilon: float | None
    quartiles: Mapping[str, Quartiles]  # of each metric, over clients
    by_client: Mapping[str, Mapping[str, float]]  # metric -> client -> value; empty if many


@dataclass
class ClientHistory:
    """What a client did in the last round that it was asked in, and how often it was dropped."""

    round: int = 0
    asked: int = 0
    drops: int = 0
    dropped: str | None = None
    note: str | None = None  # a remark on an upload that was not used as it was sent
    loss: float | None = None
    divergence: float | None = None
    images_per_s: float | None = None


@dataclass
class History:
    """The finished rounds of a run."""

    points: list[RoundPoint] = field(default_factory=list)
    clients: dict[str, ClientHistory] = field(default_factory=dict)
    seconds: float = 0.0  # of training
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))  # seconds of rounds
    images_per_s: float | None = None  # of the last round
    of: int = 0  # rounds of the run, as of the last line
    delta: float | None = None
    failed: list[int] = field(default_factory=list)  # rounds
    unreadable: int = 0  # lines
    warnings: dict[LiveWarning, None] = field(default_factory=dict)  # in their order
    note: str | None = None  # the algorithm's warning
    _collapse: Collapse = field(default_factory=Collapse)

    @property
    def rounds(self) -> int:
        """The number of the last finished round; 0 before the first."""
        return self.points[-1].round if self.points else 0

    @property
    def seconds_per_round(self) -> float | None:
        """The median time of the last rounds; None before the first."""
        return median(self.recent) if self.recent else None

    def add_lines(self, lines: Iterable[bytes]) -> None:
        """Add lines of the rounds log; count those that cannot be read."""
        for line in lines:
            try:
                self._add(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                self.unreadable += 1

    def add_warnings(self, warnings: Iterable[LiveWarning]) -> None:
        """Add warnings of the training process that are not known yet."""
        known = {warning.text for warning in self.warnings}
        for warning in warnings:
            if warning.text not in known:
                self.warnings[warning] = None

    def _add(self, record: Mapping[str, Any]) -> None:
        number = record["round"]
        if not isinstance(number, int) or number <= self.rounds:
            raise ValueError(number)
        replied = [client for client in record["clients"] if client["dropped"] is None]
        point = RoundPoint(
            number,
            loss=_number(record["loss"]),
            knn=_number(record["knn"]),
            knn_common=_number(record.get("knn_common")),
            knn_on=_number(record.get("knn_on")),
            epsilon=_number(record.get("privacy", {}).get("epsilon")),
            quartiles=dict(_quartiles(replied)),
            by_client=_values_by_client(replied),
        )
        seconds = float(record["seconds"])
        images_per_s = _number(record["images_per_s"])
        clients = [(str(client["client"]), client) for client in record["clients"]]
        # Nothing can fail from here on.
        self.points.append(point)
        self.seconds += seconds
        self.recent.append(seconds)
        self.images_per_s = images_per_s
        self.of = record.get("of", 0)
        self.delta = record.get("privacy", {}).get("delta")
        self.note = record.get("warning")
        if record.get("failed"):
            self.failed.append(number)
        for name, client in clients:
            _update(self.clients.setdefault(name, ClientHistory()), number, client)
        self._warn_of_collapse(record)

    def _warn_of_collapse(self, record: Mapping[str, Any]) -> None:
        warning = self._collapse.update(record)
        if warning is not None:
            self.add_warnings([LiveWarning(record["round"], warning)])


def _number(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def _update(client: ClientHistory, number: int, line: Mapping[str, Any]) -> None:
    """Add a client's part of a round. The metrics of the last round with an upload are kept."""
    client.round = number
    client.asked += 1
    client.dropped = line["dropped"]
    client.note = None
    if client.dropped is not None:
        client.drops += 1
        return
    client.loss = _number(line.get("loss"))
    client.divergence = _number(line.get("divergence"))
    client.images_per_s = _number(line.get("images_per_s"))
    if "clipped" in line:
        client.note = f"its update was scaled by {line['clipped']:.2g}"
    if "rows_left_out" in line:
        client.note = str(line["rows_left_out"])


def _quartiles(clients: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Quartiles]]:
    """Yield the quartiles of each metric that clients have."""
    for metric in METRICS:
        values = [_number(client.get(metric)) for client in clients]
        finite = [value for value in values if value is not None]
        if len(finite) == 1:
            yield metric, (finite[0], finite[0], finite[0])
        elif finite:
            low, middle, high = quantiles(finite, n=4, method="inclusive")
            yield metric, (low, middle, high)


def _values_by_client(clients: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the metrics of each client, unless there are many clients."""
    if len(clients) > MAX_LINES:
        return {}
    values: dict[str, dict[str, float]] = {}
    for metric in METRICS:
        values[metric] = {}
        for client in clients:
            value = _number(client.get(metric))
            if value is not None:
                values[metric][str(client["client"])] = value
    return values
