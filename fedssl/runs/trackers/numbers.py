"""The numbers of a round, and of the results of a run, by the names that trackers show."""

from __future__ import annotations

import hashlib
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedssl.evaluation.verdict import THIS_RUN
from fedssl.experiment.plain_values import flatten

MAX_CLIENTS = 20  # clients with series of their own
MAX_NAME = 60  # characters of a client's name
PLAIN_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_. -]*[A-Za-z0-9_])?")
SUMMARIES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "min": min,
    "max": max,
}


class ClientNames:
    """The clients that have series of their own: the first ones of the log, as trackers name them.

    They depend on the log only, so that a resumed run has the same.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    @property
    def full(self) -> bool:
        """True if no further client gets its own series."""
        return len(self._names) >= MAX_CLIENTS

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the clients of a round while there is room."""
        for client in record["clients"]:
            if not self.full:
                self._names.setdefault(client["client"], series_name(client["client"]))

    def get(self, client: str) -> str | None:
        """Return the name of a client's series; None if it has none."""
        return self._names.get(client)


def series_name(client: str) -> str:
    """Return a client's name in characters that every tracker accepts.

    Another name than the client's own ends in a digest, so that no two clients share one.
    """
    if PLAIN_NAME.fullmatch(client) and len(client) <= MAX_NAME:
        return client
    digest = hashlib.sha256(client.encode()).hexdigest()[:8]
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", client)
    return f"{plain[:MAX_NAME]}-{digest}"


def round_numbers(record: Mapping[str, Any], names: ClientNames) -> dict[str, float]:
    """Return every number of a round's record by a flat name; true is 1 and false is 0.

    The numbers of all clients are summarised, and those of the clients in `names` are returned
    too. The number of the round itself is left out: it is the step of all others.
    """
    own = {key: value for key, value in record.items() if key not in ("round", "clients")}
    numbers = dict(_numbers(own))
    of_all: dict[str, list[float]] = defaultdict(list)
    dropped = 0
    for client in record["clients"]:
        dropped += client["dropped"] is not None
        name = names.get(client["client"])
        for key, value in _numbers(client):
            of_all[key].append(value)
            if name is not None:
                numbers[f"clients/{name}/{key}"] = value
    for key, values in of_all.items():
        for summary, function in SUMMARIES.items():
            numbers[f"clients_{summary}/{key}"] = function(values)
    numbers["clients_selected"] = float(len(record["clients"]))
    numbers["clients_dropped"] = float(dropped)
    return numbers


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of nested tables by their path."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            for inner, number in _numbers(value):
                yield f"{key}/{inner}", number
        elif isinstance(value, bool | int | float):
            yield key, float(value)


def final_numbers(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the accuracies in results.json, the gains over baselines, and the privacy spent."""
    numbers = _table_numbers(results.get("table", {}), "final")
    numbers |= _table_numbers(results.get("on", {}).get("table", {}), "final_on")
    for baseline, gains in results.get("verdict", {}).get("gains", {}).items():
        for probe, gain in _numbers(gains):
            numbers[f"final_gain/{baseline}/{probe}"] = gain
    for key, value in _numbers(results.get("privacy", {})):
        numbers[f"final_privacy/{key}"] = value
    return numbers


def _table_numbers(table: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Return the accuracies of each row and probe, and their standard deviations over models."""
    numbers = {}
    for row, scores in table.items():
        start = prefix if row == THIS_RUN else f"{prefix}/{row}"
        for probe, score in scores.items():
            numbers[f"{start}/{probe}"] = float(score["mean"])
            if "std" in score:
                numbers[f"{start}/{probe}_std"] = float(score["std"])
    return numbers


def flat_settings(values: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Return the settings of an experiment by dotted key; lists become text."""
    settings: dict[str, bool | int | float | str] = {}
    for key, value in flatten(values).items():
        settings[key] = value if isinstance(value, bool | int | float | str) else str(value)
    return settings
