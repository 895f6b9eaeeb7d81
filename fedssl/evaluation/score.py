"""The score of a probe: an accuracy and a confusion matrix for each model."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import Tensor

DIGITS = 4  # decimals of a percentage: enough to count each of a million test images


class Score(dict[str, float]):
    """One probe's accuracy in percent for each model: a dict by the name of the model.

    Attributes:
        confusion: For each model, test images by class (rows) and prediction (columns).
        own_mix: For a probe that measures clients, each client's accuracy on test images in its
            own mix of classes.
    """

    note: str | None = None  # what is unusual about the measurement
    labelled: int = 0  # labelled images that the probe learned from
    neighbours: int | None = None  # k of kNN
    # Models that do not count in the mean: the mean of peers, or shared models if clients have
    # their own.
    excluded: frozenset[str] = frozenset()

    def __init__(self, *values: Any, **more: float) -> None:
        super().__init__(*values, **more)
        self.confusion: dict[str, list[list[int]]] = {}
        self.own_mix: dict[str, float | None] = {}
        self._times_correct = torch.zeros(0)
        self._counted_models = 0

    def add(self, name: str, labels: Tensor, predictions: Tensor, classes: int) -> None:
        """Add a model by its predictions for the test images (n,)."""
        matrix = confusion(labels, predictions, classes)
        self[name] = percent(int(matrix.trace()), int(matrix.sum()))
        self.confusion[name] = matrix.tolist()
        if name in self.excluded:
            return
        correct = (labels == predictions).float().cpu()
        if self._counted_models:
            correct += self._times_correct
        self._times_correct = correct
        self._counted_models += 1

    @property
    def correct(self) -> Tensor:
        """For each test image, the share of the models that classify it correctly (n,), without
        excluded ones."""
        return self._times_correct / max(1, self._counted_models)

    def add_note(self, note: str) -> None:
        """Append a remark to the note."""
        self.note = f"{self.note}; {note}" if self.note else note

    @property
    def per_class(self) -> dict[str, list[float | None]]:
        """For each model the accuracy in percent by class; None without test images of a class."""
        accuracies = {}
        for name, rows in self.confusion.items():
            accuracies[name] = [_class_accuracy(row, label) for label, row in enumerate(rows)]
        return accuracies

    @property
    def tested(self) -> int:
        """The number of test images."""
        return sum(map(sum, next(iter(self.confusion.values()), [])))

    @property
    def mean(self) -> float:
        """The mean over models, without excluded ones."""
        return rounded(statistics.fmean(self._counted()))

    @property
    def std(self) -> float:
        """The standard deviation over models, without excluded ones; 0 for one model."""
        accuracies = self._counted()
        if len(accuracies) < 2:
            return 0.0
        return rounded(statistics.stdev(accuracies))

    @property
    def own_mix_mean(self) -> float | None:
        """The mean over clients, each in its own mix of classes; None if none was measured."""
        return _mean([accuracy for accuracy in self.own_mix.values() if accuracy is not None])

    @property
    def excluded_mean(self) -> float | None:
        """The mean over the excluded models; None if there are none."""
        return _mean([self[name] for name in self.excluded])

    def _counted(self) -> list[float]:
        return [accuracy for name, accuracy in self.items() if name not in self.excluded]

    def summary(self) -> dict[str, Any]:
        """Return the mean as plain values; with several models also their spread and accuracies."""
        if len(self) == 1:
            return {"mean": self.mean}
        summary: dict[str, Any] = {"mean": self.mean, "std": self.std, "models": dict(self)}
        excluded = [name for name in self if name in self.excluded]
        if excluded:
            summary["excluded"] = excluded
        return summary

    def details(self) -> dict[str, Any]:
        """Return everything as plain values."""
        details = self.summary()
        details["models"] = dict(self)
        details["note"] = self.note
        details["labelled"] = self.labelled
        details["tested"] = self.tested
        details["per_class"] = self.per_class
        details["confusion"] = self.confusion
        if self.own_mix:
            details["own_mix"] = self.own_mix
            details["own_mix_mean"] = self.own_mix_mean
        return details


def confusion(labels: Tensor, predictions: Tensor, classes: int) -> Tensor:
    """Return int64 (C, C): the number of images by class (rows) and predicted class (columns)."""
    pairs = labels * classes + predictions
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)


def _class_accuracy(row: list[int], label: int) -> float | None:
    if not sum(row):
        return None
    return percent(row[label], sum(row))


def _mean(percentages: list[float]) -> float | None:
    if not percentages:
        return None
    return rounded(statistics.fmean(percentages))


def percent(count: int, total: int) -> float:
    """Return a share in percent.

    817 of 1000 are 81.7, where 100 · (817 / 1000) in floating point is 81.69999999999999.
    """
    return rounded(100 * count / total)


def rounded(percentage: float) -> float:
    """Round a percentage to the digits that are significant and stored."""
    return round(percentage, DIGITS)
