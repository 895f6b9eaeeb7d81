"""Measure the models after a round, if the experiment is configured to."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fedssl.engine.checkpoints.store import Snapshot
from fedssl.evaluation.evaluate import Evaluation
from fedssl.evaluation.models import models_of
from fedssl.evaluation.probe_images import measure_other
from fedssl.evaluation.score import Score


class RoundScores(NamedTuple):
    """The kNN accuracies after a round; None if one is not measured."""

    own: Score | None = None  # on the images of the experiment
    other: Score | None = None  # on the images of `probe.on`


NOT_MEASURED = RoundScores()


def measure_round(evaluation: Evaluation, snapshot: Snapshot, device: torch.device) -> RoundScores:
    """Return the kNN accuracies after a round; NOT_MEASURED if none is due or possible."""
    experiment = evaluation.experiment
    every = experiment.probe.every
    measurable = evaluation.images.possible
    if not every or not (measurable or evaluation.other):
        return NOT_MEASURED
    is_last = snapshot.rounds == experiment.rounds
    if snapshot.rounds % every != 0 and not is_last:
        return NOT_MEASURED
    models = models_of(experiment, snapshot.sites, snapshot.memory, device)
    if not models:
        return NOT_MEASURED
    own = None
    if measurable:
        own = evaluation.measure(models, ("knn",), models.excluded)["knn"]
    return RoundScores(own, measure_other(evaluation, models))
