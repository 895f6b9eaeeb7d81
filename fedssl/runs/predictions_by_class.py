"""Predictions of the probes by class, for classes.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedssl.data import Images
from fedssl.evaluation.score import Score

MAX_LISTED_MODELS = 100  # of a score


def by_class(scores: Mapping[str, Mapping[str, Score]], test: Images | None) -> dict[str, Any]:
    """Return the predictions of each probe by class, as plain values; not of very many models."""
    rows: dict[str, dict[str, Any]] = {}
    for name, row in scores.items():
        rows[name] = {}
        for probe, score in row.items():
            if len(score) <= MAX_LISTED_MODELS:
                rows[name][probe] = {"per_class": score.per_class, "confusion": score.confusion}
    classes = [] if test is None else list(test.classes)
    return {"classes": classes, "table": rows}
