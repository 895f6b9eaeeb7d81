"""What a probe finds: an accuracy for each model, and which class it took for which."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import Tensor


class Score(dict[str, float]):
    """One probe's accuracy in percent for each model; `note` says what is unusual about the measurement.

    Those named in `apart` are no part of the mean over models: peers' mean, or what all share beside clients' own.
    `confusion` has, for each model, how many test images of each class (rows) were taken for which (columns).
    `own_mix` has, of a probe that measures clients, each one's accuracy on test images in its own mix of classes.
    """

    note: str | None = None
    apart: frozenset[str] = frozenset()

    def __init__(self, *values: Any, **more: float) -> None:
        super().__init__(*values, **more)
        self.confusion: dict[str, list[list[int]]] = {}
        self.own_mix: dict[str, float | None] = {}

    def add(self, name: str, confusion: Tensor) -> None:
        """A model's accuracy, from its confusion matrix (C, C)."""
        self[name] = 100 * float(confusion.trace() / confusion.sum().double())
        self.confusion[name] = confusion.tolist()

    @property
    def per_class(self) -> dict[str, list[float | None]]:
        """For each model the accuracy in percent within each class; None where there are no test images of it."""
        return {name: [_share(row, label) for label, row in enumerate(rows)] for name, rows in self.confusion.items()}

    @property
    def mean(self) -> float:
        return statistics.fmean(self._each())

    @property
    def std(self) -> float:
        """Spread over models; 0 for one."""
        return statistics.stdev(self._each()) if len(self._each()) > 1 else 0.0

    @property
    def common(self) -> float | None:
        """The mean over those apart; None where there are none."""
        return statistics.fmean(self[name] for name in self.apart) if self.apart else None

    def _each(self) -> list[float]:
        return [accuracy for name, accuracy in self.items() if name not in self.apart]

    def summary(self) -> dict[str, Any]:
        if len(self) == 1:
            return {"mean": self.mean}
        apart = [name for name in self if name in self.apart]
        return {"mean": self.mean, "std": self.std, "models": dict(self)} | ({"apart": apart} if apart else {})

    def details(self) -> dict[str, Any]:
        """All there is, in plain values."""
        whole = {"note": self.note, "per_class": self.per_class, "confusion": self.confusion}
        own = {"own_mix": self.own_mix} if self.own_mix else {}
        return self.summary() | {"models": dict(self)} | whole | own


def confusion(labels: Tensor, predictions: Tensor, classes: int) -> Tensor:
    """int64 (C, C): images of each class (rows) by the class they were taken for (columns)."""
    return torch.bincount(labels * classes + predictions, minlength=classes * classes).view(classes, classes)


def _share(row: list[int], label: int) -> float | None:
    return 100 * row[label] / sum(row) if sum(row) else None
