"""Finish a run: export its backbones, measure them, and write results.json and a picture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssl.core.console import Notify, ignore_message, print_to_stderr
from fedssl.core.files import integrity
from fedssl.core.files.atomic import write_atomic
from fedssl.core.files.lock import locked
from fedssl.core.provenance import environment
from fedssl.core.user_modules import imported_hashes
from fedssl.data import Dataset, Images
from fedssl.engine.checkpoints.store import Snapshot, Store
from fedssl.evaluation.evaluate import Evaluation
from fedssl.evaluation.models import Models, export, models_of
from fedssl.evaluation.outcomes import OUTCOMES, outcomes_of, write_outcomes
from fedssl.evaluation.score import Score
from fedssl.evaluation.verdict import THIS_RUN, judge, line
from fedssl.experiment.baseline_names import UNTRAINED
from fedssl.experiment.experiment import Experiment
from fedssl.runs import private_run
from fedssl.runs.baselines import Baselines, announce, baselines_of, untrained_models
from fedssl.runs.earlier_results import restore, set_aside
from fedssl.runs.feature_check import check_features
from fedssl.runs.label_counts import label_counts
from fedssl.runs.picture import draw_if_wanted
from fedssl.runs.predictions_by_class import by_class
from fedssl.runs.resume_checks import read_experiment, runtime_facts
from fedssl.runs.round_history import read_history
from fedssl.runs.up_to_date import (
    CHECKPOINTS,
    LEARNED_IMAGES,
    Wanted,
    can_be_restored,
    checkpoint_digests,
    hash_images,
    hash_labels,
    hash_learned_images,
    is_up_to_date,
)

MEASUREMENTS = {"results.json", "classes.json", OUTCOMES}


def finish(
    folder: Path,
    data: Dataset,
    public: Tensor | None,
    device: torch.device,
    quiet: bool,
    alone: bool = False,
) -> bool:
    """Export and measure a run whose last round is done; False if it was finished already.

    Baselines train on the same images, `public` ones included. With `alone` none of them is
    trained, because not all images are on this machine.
    """
    with locked(folder):
        return _finish(folder, data, public, device, quiet=quiet, alone=alone)


def _finish(
    folder: Path,
    data: Dataset,
    public: Tensor | None,
    device: torch.device,
    *,
    quiet: bool,
    alone: bool,
) -> bool:
    notify = ignore_message if quiet else print_to_stderr
    experiment = read_experiment(folder, notify)
    snapshot = Store(folder).load(ignore_message, check_rows=False)
    assert snapshot is not None
    evaluation = Evaluation(experiment, data, device, notify=notify)
    choice = baselines_of(evaluation, folder, alone)
    baselines = Baselines(
        experiment, folder, data, public=public, device=device, names=choice.names, quiet=quiet
    )
    private = experiment.privacy.enabled
    hashes = {
        "test_images": hash_images(data.test),
        "labels": hash_labels(data, training=not private),
    }
    privacy = private_run.summarise(experiment, folder, snapshot)
    wanted = Wanted(evaluation, snapshot.rounds, hashes, choice.names, privacy)
    damaged = integrity.damaged(folder)
    measured = MEASUREMENTS.isdisjoint(damaged) and is_up_to_date(folder, wanted, notify)
    _remove_damaged(folder, damaged, notify)
    if measured and not damaged:
        baselines.repair()
        return False
    if not measured:
        can_be_used = partial(can_be_restored, wanted=wanted, baselines=baselines)
        measured = restore(folder, can_be_used, notify)
    if not measured:
        announce(folder, choice, notify)
    _write_outputs(
        evaluation, snapshot, baselines, hashes=hashes, damaged=damaged, measured=measured
    )
    return True


def _write_outputs(
    evaluation: Evaluation,
    snapshot: Snapshot,
    baselines: Baselines,
    *,
    hashes: Mapping[str, str | None],
    damaged: list[str],
    measured: bool,
) -> None:
    """Export the models, and measure them unless results.json is up to date."""
    experiment = evaluation.experiment
    folder = baselines.folder
    image = evaluation.data.train.image_shape
    models = models_of(experiment, snapshot.sites, snapshot.memory)
    results = _describe(folder, evaluation, models, last=snapshot, hashes=hashes)
    check_features(experiment, snapshot.sites, image, evaluation.device)
    if not measured:
        set_aside(folder, results, evaluation.notify)
    _forget_hashes(folder, damaged, measured)
    export(
        experiment,
        folder,
        models,
        image=image,
        rounds=snapshot.rounds,
        notes=results["notes"],
        privacy=results.get("privacy"),
    )
    if measured:  # exported models or the picture were damaged, or results were restored
        results = integrity.read_json(folder, "results.json") or results
    else:
        _measure(evaluation, baselines, models, results)
        if "verdict" in results:  # now: the picture may take a minute
            evaluation.notify(line(results["verdict"]))
    if not (folder / "picture.png").is_file():
        draw_if_wanted(folder, evaluation, models, results["table"])
    integrity.record_hashes(folder, {*integrity.OUTPUTS, *integrity.outputs(folder)})


def _remove_damaged(folder: Path, damaged: list[str], notify: Notify) -> None:
    for name in damaged:
        notify(
            f"{folder / name} is damaged: it does not match its recorded hash. It is removed and "
            "made again"
        )
        (folder / name).unlink()


def _forget_hashes(folder: Path, damaged: list[str], measured: bool) -> None:
    """Forget the hashes of the files that are about to be written again."""
    if measured:
        exported = {path.name for path in folder.glob("backbone*.safetensors")}
        integrity.forget_hashes(folder, {*damaged, *exported})
    else:
        integrity.forget_hashes(folder, {*integrity.OUTPUTS, *integrity.outputs(folder)})


def _describe(
    folder: Path,
    evaluation: Evaluation,
    models: Models,
    *,
    last: Snapshot,
    hashes: Mapping[str, str | None],
) -> dict[str, Any]:
    """Return the contents of results.json, with an empty table."""
    history = read_history(folder)
    privacy = private_run.summarise(evaluation.experiment, folder, last)
    results = {
        "experiment": evaluation.experiment.hash(),
        "rounds": last.rounds,
        **hashes,
        "models": len(models),
        "probe": evaluation.experiment.to_dict()["probe"],
        "environment": environment(evaluation.device) | {"code": ", ".join(history.codes)},
        **runtime_facts(folder),
        "notes": _notes(evaluation, models, history.notes),
        "table": {},
    }
    if privacy is not None:
        results["privacy"] = privacy
        results["notes"].insert(0, private_run.note(privacy))
        if _measurable(evaluation, models):
            results["notes"].insert(1, private_run.UNCOVERED)
    if _measurable(evaluation, models):
        results["knn_settings"] = evaluation.knn_settings
    if imports := imported_hashes():
        results["imports"] = imports
    return results


def _notes(evaluation: Evaluation, models: Models, of_rounds: list[str]) -> list[str]:
    """Return the remarks on training and measurement that come with the results."""
    notes = []
    if evaluation.experiment.algorithm.warning is not None:
        notes.append(evaluation.experiment.algorithm.warning)
    if evaluation.images.note:
        notes.append(evaluation.images.note)
    if not models:
        notes.append(
            "no model was measured: each client has its own model, and none is on this machine"
        )
    notes += of_rounds
    if not _measurable(evaluation, models):
        return notes
    for probe in probes(evaluation.experiment):
        for note in evaluation.images.notes(probe):
            if note not in notes:
                notes.append(note)
    return notes


def _measurable(evaluation: Evaluation, models: Models) -> bool:
    return evaluation.images.possible and bool(models)


def probes(experiment: Experiment) -> tuple[str, ...]:
    """Return the probes that measure a finished run."""
    if experiment.probe.linear:
        return ("knn", "linear")
    return ("knn",)


def _measure(
    evaluation: Evaluation, baselines: Baselines, models: Models, results: dict[str, Any]
) -> None:
    """Fill in the results, and write them together with classes and outcomes."""
    folder = baselines.folder
    if _measurable(evaluation, models):
        chosen = probes(evaluation.experiment)
        results["measured_on"] = evaluation.images.description(chosen)
        results["labelled"] = {probe: evaluation.images.learned_from(probe) for probe in chosen}
        # A hash of the clients' images would confirm a guess of them.
        private = evaluation.experiment.privacy.enabled
        if not private:
            results[LEARNED_IMAGES] = hash_learned_images(evaluation.data)
        scores: dict[str, dict[str, Score]] = {}
        for name, row in _rows(evaluation, baselines, models):
            scores[name] = row
            if not private:
                results[CHECKPOINTS] = checkpoint_digests(scores, baselines)
            # After each row: training the next baseline may take long, or be interrupted.
            _write_scores(folder, scores, evaluation.data.test, results)
    else:
        _write_results(folder, results)


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


def _rows(
    evaluation: Evaluation, baselines: Baselines, models: Models
) -> Iterator[tuple[str, dict[str, Score]]]:
    """Yield the score of every probe, for this run and for each of its baselines."""
    experiment = evaluation.experiment
    chosen = probes(experiment)
    own = evaluation.measure(models, chosen, models.excluded)
    yield THIS_RUN, own
    for name in baselines.names:
        if name in UNTRAINED:
            image = evaluation.data.train.image_shape
            untrained = untrained_models(experiment, image, evaluation.device, name)
            yield name, evaluation.measure(untrained, chosen)
        elif baselines.is_same_training(name):
            yield name, own
        else:
            trained = baselines.trained_models(name)
            yield name, evaluation.measure(trained, chosen, trained.excluded)
