"""What a probe finds: an accuracy for each model, and which class it took for which."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import Tensor

DIGITS = 4  # behind the point that a percentage is kept with: of a million test images, each counts


class Score(dict[str, float]):
    """One probe's accuracy in percent for each model; `note` says what is unusual about the measurement.

    Those named in `apart` are no part of the mean over models: peers' mean, or what all share beside clients' own.
    `confusion` has, for each model, how many test images of each class (rows) were taken for which (columns).
    `labelled` is how many labelled images it learned from.
    `own_mix` has, of a probe that measures clients, each one's accuracy on test images in its own mix of classes.
    """

    note: str | None = None
    labelled: int = 0
    apart: frozenset[str] = frozenset()

    def __init__(self, *values: Any, **more: float) -> None:
        super().__init__(*values, **more)
        self.confusion: dict[str, list[list[int]]] = {}
        self.own_mix: dict[str, float | None] = {}

    def add(self, name: str, confusion: Tensor) -> None:
        """A model's accuracy, from its confusion matrix (C, C)."""
        self[name] = percent(int(confusion.trace()), int(confusion.sum()))
        self.confusion[name] = confusion.tolist()

    def add_note(self, note: str) -> None:
        self.note = "; ".join(filter(None, [self.note, note]))

    @property
    def per_class(self) -> dict[str, list[float | None]]:
        """For each model the accuracy in percent within each class; None where there are no test images of it."""
        return {name: [_share(row, label) for label, row in enumerate(rows)] for name, rows in self.confusion.items()}

    @property
    def tested(self) -> int:
        """How many test images it was measured on."""
        return sum(map(sum, next(iter(self.confusion.values()), [])))

    @property
    def mean(self) -> float:
        return rounded(statistics.fmean(self._each()))

    @property
    def std(self) -> float:
        """Spread over models; 0 for one."""
        return rounded(statistics.stdev(self._each())) if len(self._each()) > 1 else 0.0

    @property
    def own_mix_mean(self) -> float | None:
        """The mean over clients, each in its own mix of classes; None where none was measured so."""
        known = [accuracy for accuracy in self.own_mix.values() if accuracy is not None]
        return rounded(statistics.fmean(known)) if known else None

    @property
    def common(self) -> float | None:
        """The mean over those apart; None where there are none."""
        return rounded(statistics.fmean(self[name] for name in self.apart)) if self.apart else None

    def _each(self) -> list[float]:
        return [accuracy for name, accuracy in self.items() if name not in self.apart]

    def summary(self) -> dict[str, Any]:
        if len(self) == 1:
            return {"mean": self.mean}
        apart = [name for name in self if name in self.apart]
        return {"mean": self.mean, "std": self.std, "models": dict(self)} | ({"apart": apart} if apart else {})

    def details(self) -> dict[str, Any]:
        """All there is, in plain values."""
        counts = {"labelled": self.labelled, "tested": self.tested}
        whole = {"note": self.note, **counts, "per_class": self.per_class, "confusion": self.confusion}
        own = {"own_mix": self.own_mix, "own_mix_mean": self.own_mix_mean} if self.own_mix else {}
        return self.summary() | {"models": dict(self)} | whole | own


def confusion(labels: Tensor, predictions: Tensor, classes: int) -> Tensor:
    """int64 (C, C): images of each class (rows) by the class they were taken for (columns)."""
    return torch.bincount(labels * classes + predictions, minlength=classes * classes).view(classes, classes)


def _share(row: list[int], label: int) -> float | None:
    return percent(row[label], sum(row)) if sum(row) else None


def percent(part: int, whole: int) -> float:
    """A share in percent: 817 of 1000 are 81.7, where 100 · (817 / 1000) in floating point is 81.69999999999999."""
    return rounded(100 * part / whole)


def rounded(percentage: float) -> float:
    """As every percentage is kept, so that no file has digits that mean nothing."""
    return round(percentage, DIGITS)
