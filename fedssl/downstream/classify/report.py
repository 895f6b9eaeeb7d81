"""The cross-validated accuracy of a classifier, in total and for each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedssl.evaluation.intervals import Interval, accuracy_interval, difference_interval
from fedssl.evaluation.score import confusion, percent


class ClassRow(NamedTuple):
    """How one class was predicted."""

    name: str
    images: int
    recall: float  # percent of its images that were predicted as this class
    precision: float | None  # percent of such predictions that were right; None without any
    confused_with: str | None  # the class that most of its other images were predicted as


class Report(NamedTuple):
    """A cross-validated accuracy, compared with always predicting the largest class."""

    accuracy: Interval
    majority_class: str
    majority: float  # percent
    gain: Interval  # accuracy minus majority, on the same images
    rows: tuple[ClassRow, ...]
    folds: int
    penalty: float

    def values(self) -> dict[str, Any]:
        """Return the report as plain values."""
        plain = self._asdict()
        plain["accuracy"] = self.accuracy._asdict()
        plain["gain"] = self.gain._asdict()
        plain["rows"] = [row._asdict() for row in self.rows]
        return plain


def make_report(
    labels: Tensor, predicted: Tensor, classes: Sequence[str], *, folds: int, penalty: float
) -> Report:
    """Return the report on predictions (n,) of held-out images with labels (n,)."""
    counts = torch.bincount(labels, minlength=len(classes))
    largest = int(counts.argmax())
    correct = (labels == predicted).double()
    always = (labels == largest).double()
    matrix = confusion(labels, predicted, len(classes))
    rows = []
    for number, name in enumerate(classes):
        rows.append(_row(name, number, matrix, classes))
    return Report(
        accuracy=accuracy_interval(correct),
        majority_class=classes[largest],
        majority=percent(int(counts[largest]), len(labels)),
        gain=difference_interval(correct, always),
        rows=tuple(rows),
        folds=folds,
        penalty=penalty,
    )


def _row(name: str, number: int, matrix: Tensor, classes: Sequence[str]) -> ClassRow:
    right = int(matrix[number, number])
    images = int(matrix[number].sum())
    answers = int(matrix[:, number].sum())
    errors = matrix[number].clone()
    errors[number] = 0
    worst = int(errors.argmax())
    return ClassRow(
        name=name,
        images=images,
        recall=percent(right, images),
        precision=percent(right, answers) if answers else None,
        confused_with=classes[worst] if int(errors[worst]) else None,
    )
