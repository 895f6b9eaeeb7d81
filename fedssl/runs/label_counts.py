"""Read from results.json how many labelled images probes learned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedssl.evaluation.advice import LabelCounts
from fedssl.evaluation.labelled_images import HALVED


def label_counts(results: Mapping[str, Any]) -> LabelCounts:
    """Return the counts that results.json has; earlier versions did not write them."""
    learned = results.get("labelled", {})
    return LabelCounts(learned, halved=bool(learned) and HALVED in results.get("notes", ()))
