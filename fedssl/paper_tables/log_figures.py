"""Figures of a table that are read from the rounds log of a run, not measured by a probe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedssl.core.errors import ConfigError

Rounds = list[dict[str, Any]]  # the lines of a rounds log


def rounds_to(rounds: Rounds, target: float) -> int | None:
    """Return the first round after which kNN was at least `target` %; None if never."""
    for line in rounds:
        if line["knn"] is not None and line["knn"] >= target:
            number: int = line["round"]
            return number
    return None


def divergence(rounds: Rounds, at: float) -> float | None:
    """Return the clients' mean divergence in the round at this share of all rounds.

    None if no client of that round measured it.
    """
    if not 0 < at <= 1:
        raise ConfigError(f"at is a share of the rounds, above 0 and at most 1 (got {at})")
    line = rounds[max(0, round(at * len(rounds)) - 1)]
    measured: list[float] = []
    for client in line["clients"]:
        value = client.get("divergence")
        if value is not None:
            measured.append(value)
    if not measured:
        return None
    return sum(measured) / len(measured)


# The figures of published.LOGGED.
LOG_METRICS: dict[str, Callable[..., float | None]] = {
    "rounds-to": rounds_to,
    "divergence": divergence,
}
