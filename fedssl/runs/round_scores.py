"""Measure the models after a round, if the experiment is configured to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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
HASH_DIGITS = 16  # of the hash of the images, in each line of the log


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


def log_entries(
    evaluation: Evaluation, scores: RoundScores, hashes: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return the entries of a line of the rounds log: accuracies, settings, hashes of images.

    `hashes` are those of results.json.
    """
    entries: dict[str, Any] = {"knn": None, "knn_common": None}
    if scores.own is not None:
        entries["knn"] = scores.own.mean
        entries["knn_common"] = scores.own.excluded_mean
        entries["knn_settings"] = evaluation.knn_settings
        entries["knn_images"] = _shortened(hashes["test_images"])
    if scores.other is not None:
        assert evaluation.other is not None
        entries["knn_on"] = scores.other.mean
        entries["knn_on_settings"] = evaluation.other.knn_settings
        entries["knn_on_images"] = _shortened(hashes["on_images"])
    return entries


def _shortened(digest: str | None) -> str | None:
    return digest and digest[:HASH_DIGITS]
