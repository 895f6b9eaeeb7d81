"""Measure a run and its baselines after the last round, and write the measurements."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedssl.core.files.atomic import write_atomic
from fedssl.data import Images
from fedssl.evaluation.evaluate import Evaluation
from fedssl.evaluation.models import Models
from fedssl.evaluation.outcomes import outcomes_of, write_outcomes
from fedssl.evaluation.probe_images import measure_other
from fedssl.evaluation.score import Score
from fedssl.evaluation.verdict import THIS_RUN, judge
from fedssl.experiment.baseline_names import UNTRAINED
from fedssl.experiment.experiment import Experiment
from fedssl.runs.baselines import Baselines, untrained_models
from fedssl.runs.image_hashes import hash_learned_images
from fedssl.runs.label_counts import label_counts
from fedssl.runs.predictions_by_class import by_class
from fedssl.runs.up_to_date import (
    CHECKPOINTS,
    LEARNED_IMAGES,
    checkpoint_digests,
)


class Row(NamedTuple):
    """The scores of this run or of a baseline."""

    name: str
    own: dict[str, Score]  # by probe, on the images of the experiment; empty without labels
    other: Score | None  # kNN on the images of `probe.on`


def measurable(evaluation: Evaluation, models: Models) -> bool:
    """True if there are models, and labelled images of the experiment."""
    return evaluation.images.possible and bool(models)


def probes(experiment: Experiment) -> tuple[str, ...]:
    """Return the probes that measure a finished run."""
    if experiment.probe.linear:
        return ("knn", "linear")
    return ("knn",)


def measure(
    evaluation: Evaluation, baselines: Baselines, models: Models, results: dict[str, Any]
) -> None:
    """Fill in the results, and write them together with classes and outcomes."""
    folder = baselines.folder
    if evaluation.other is not None and models:
        results["on"] = _describe_other(evaluation.other)
    if measurable(evaluation, models):
        chosen = probes(evaluation.experiment)
        results["measured_on"] = evaluation.images.description(chosen)
        results["labelled"] = {probe: evaluation.images.learned_from(probe) for probe in chosen}
        # A hash of the clients' images would confirm a guess of them.
        private = evaluation.experiment.privacy.enabled
        if not private:
            results[LEARNED_IMAGES] = hash_learned_images(evaluation.data)
        scores: dict[str, dict[str, Score]] = {}
        for row in _rows(evaluation, baselines, models):
            scores[row.name] = row.own
            _add_other(results, row)
            if not private:
                results[CHECKPOINTS] = checkpoint_digests(scores, baselines)
            # After each row: training the next baseline may take long, or be interrupted.
            _write_scores(folder, scores, evaluation.data.test, results)
    else:
        if evaluation.other is not None and models:
            _add_other(results, Row(THIS_RUN, {}, measure_other(evaluation, models)))
        _write_results(folder, results)


def _describe_other(other: Evaluation) -> dict[str, Any]:
    """Return which images of `probe.on` are measured, and how, with an empty table."""
    return {
        "measured_on": other.images.description(("knn",)),
        "knn_settings": other.knn_settings,
        "table": {},
    }


def _add_other(results: dict[str, Any], row: Row) -> None:
    if row.other is not None:
        results["on"]["table"][row.name] = {"knn": row.other.summary()}


def _write_scores(
    folder: Path,
    scores: Mapping[str, Mapping[str, Score]],
    test: Images | None,
    results: dict[str, Any],
) -> None:
    """Write the scores, by class and by test image too, and the verdict on them."""
    for name, row in scores.items():
        results["table"][name] = {probe: score.summary() for probe, score in row.items()}
    classes = json.dumps(by_class(scores, test))
    write_atomic(folder / "classes.json", f"{classes}\n".encode())
    outcomes = outcomes_of(scores)
    write_outcomes(folder, outcomes)
    results["verdict"] = judge([outcomes], label_counts(results)).values()
    _write_results(folder, results)


def _write_results(folder: Path, results: Mapping[str, Any]) -> None:
    write_atomic(folder / "results.json", f"{json.dumps(results, indent=2)}\n".encode())


def _rows(evaluation: Evaluation, baselines: Baselines, models: Models) -> Iterator[Row]:
    """Yield the scores of this run and of each of its baselines."""
    experiment = evaluation.experiment
    chosen = probes(experiment)
    this_run = Row(
        THIS_RUN,
        evaluation.measure(models, chosen, models.excluded),
        measure_other(evaluation, models),
    )
    yield this_run
    for name in baselines.names:
        # Here "random" is an untrained backbone, not the graph of that name.
        if name not in UNTRAINED and baselines.is_same_training(name):
            yield this_run._replace(name=name)
            continue
        compared = _baseline_models(evaluation, baselines, name)
        own = evaluation.measure(compared, chosen, compared.excluded)
        yield Row(name, own, measure_other(evaluation, compared))


def _baseline_models(evaluation: Evaluation, baselines: Baselines, name: str) -> Models:
    """Return the models of a baseline, after training them if necessary."""
    if name in UNTRAINED:
        image = evaluation.data.train.image_shape
        untrained = untrained_models(evaluation.experiment, image, evaluation.device, name)
        return Models({}, untrained, excluded=())
    return baselines.trained_models(name)
