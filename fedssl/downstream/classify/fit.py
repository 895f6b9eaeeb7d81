"""Fit a linear head on the features of a few labelled images, and cross-validate it.

The head minimises the mean cross-entropy + penalty/2 · ‖weight‖² over standardised features, by
L-BFGS (probes/linear.py). The penalty has the least cross-entropy on images that were held out, in
K folds with equal shares of each class.

The reported accuracy is that of held-out images, too. Its penalty is chosen anew for each fold, by
the other folds alone: the images of a fold take no part in the choice that they are measured with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.core.console import Notify, ignore_message, meter, shortened
from fedssl.core.devices.precision import threads
from fedssl.core.errors import DataError
from fedssl.core.seeds import generator
from fedssl.probes.features import Labelled
from fedssl.probes.linear import TYPICAL_EVALUATIONS, Layer, minimise, thread_count

FOLDS = 5
PENALTIES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
MAX_ITERATIONS = 100
LISTED_CLASSES = 20  # in the detail of an error
SMALLEST_STD = 1e-6  # a feature that varies less is constant


class Fit(NamedTuple):
    """A head, and its predictions for images that were held out."""

    layer: Layer
    penalty: float
    held_out: Tensor  # the predicted class of each labelled image (n,), by heads without it
    folds: int


def fit_head(train: Labelled, classes: Sequence[str], *, notify: Notify = ignore_message) -> Fit:
    """Return the head for labelled features, with cross-validated predictions.

    `classes` are the names of the labels. Every class needs two images or more; DataError
    otherwise.
    """
    counts = torch.bincount(train.labels, minlength=len(classes)).tolist()
    too_few = [name for name, count in zip(classes, counts, strict=True) if count < 2]
    if too_few:
        raise DataError(
            f"{len(too_few)} of {len(classes)} classes have a single labelled image that can be "
            "read: cross-validation needs at least 2 of each class",
            "\n".join(shortened(too_few, LISTED_CLASSES)),
        )
    with threads(thread_count(train.features.numel(), len(classes), TYPICAL_EVALUATIONS)):
        return _fit(train, notify)


def _fit(train: Labelled, notify: Notify) -> Fit:
    fold_of = stratified_folds(train.labels, min(FOLDS, len(train.labels)))
    folds = int(fold_of.max()) + 1
    losses = torch.zeros(len(PENALTIES), len(train.labels), dtype=torch.float64)
    predicted = torch.zeros(len(PENALTIES), len(train.labels), dtype=torch.int64)
    total = folds * len(PENALTIES)
    with meter("cross-validating the classifier", total, notify) as advance:
        for fold in range(folds):
            held_out = fold_of == fold
            rest = Labelled(train.features[~held_out], train.labels[~held_out])
            for number, penalty in enumerate(PENALTIES):
                logits = fit_layer(rest, penalty)(train.features[held_out].double())
                losses[number, held_out] = F.cross_entropy(
                    logits, train.labels[held_out], reduction="none"
                )
                predicted[number, held_out] = logits.argmax(1)
                advance(1)
    best = int(losses.mean(1).argmin())
    layer = fit_layer(train, PENALTIES[best])
    return Fit(layer, PENALTIES[best], held_out_predictions(losses, predicted, fold_of), folds)


def held_out_predictions(losses: Tensor, predicted: Tensor, fold_of: Tensor) -> Tensor:
    """Return each image's prediction (n,) by the penalty that is best on the other folds.

    `losses` and `predicted` are (penalties, n), `fold_of` (n,).
    """
    chosen = torch.zeros_like(fold_of)
    for fold in fold_of.unique().tolist():
        held_out = fold_of == fold
        best = int(losses[:, ~held_out].mean(1).argmin())
        chosen[held_out] = predicted[best, held_out]
    return chosen


def fit_layer(train: Labelled, penalty: float) -> Layer:
    """Return the layer that minimises the penalised loss over standardised features.

    It takes features as they are: the standardisation is part of its weight and bias.
    """
    features = train.features.double()
    mean = features.mean(0)
    std = features.std(0, correction=0)
    std = torch.where(std > SMALLEST_STD, std, torch.inf)  # a constant feature has no weight
    scaled = (features - mean) / std
    if len(scaled) < scaled.shape[1]:
        # The best weights are sums of the images' features: fit in the space that these span.
        basis, coordinates = torch.linalg.qr(scaled.T)
        layer = minimise(Labelled(coordinates.T, train.labels), penalty, MAX_ITERATIONS)
        weight = (layer.weight @ basis.T) / std
    else:
        layer = minimise(Labelled(scaled, train.labels), penalty, MAX_ITERATIONS)
        weight = layer.weight / std
    return Layer(weight, layer.bias - weight @ mean)


def stratified_folds(labels: Tensor, folds: int) -> Tensor:
    """Return the fold of each image (n,): the images of a class are dealt to folds in turn.

    The order within a class is random, by a fixed seed. A class begins where the last one ended, so
    that folds have equal sizes.
    """
    order = torch.randperm(len(labels), generator=generator("folds of labelled images"))
    by_class = order[labels[order].argsort(stable=True)]
    fold_of = torch.empty_like(labels)
    fold_of[by_class] = torch.arange(len(labels)) % folds
    return fold_of
