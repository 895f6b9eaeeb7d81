"""Finish a run: export its backbones, measure them, and write results.json and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssl.core.console import Notify, ignore_message, print_to_stderr
from fedssl.core.files import integrity
from fedssl.core.files.lock import locked
from fedssl.core.provenance import environment
from fedssl.core.user_modules import imported_hashes
from fedssl.data import Dataset
from fedssl.engine.checkpoints.store import Snapshot, Store
from fedssl.evaluation.evaluate import Evaluation
from fedssl.evaluation.models import Models, export, models_of
from fedssl.evaluation.outcomes import OUTCOMES
from fedssl.experiment.experiment import Experiment
from fedssl.plots.style import can_draw
from fedssl.runs import picture, private_run
from fedssl.runs.baselines import Baselines, announce, baselines_of
from fedssl.runs.earlier_results import restore, set_aside
from fedssl.runs.feature_check import check_features
from fedssl.runs.image_hashes import hash_images, hash_labels, hash_other
from fedssl.runs.measure import measurable, measure, probes
from fedssl.runs.resume_checks import read_experiment, runtime_facts
from fedssl.runs.round_history import read_history
from fedssl.runs.up_to_date import (
    Wanted,
    can_be_restored,
    is_up_to_date,
)

MEASUREMENTS = {"results.json", "classes.json", OUTCOMES}


def finish(
    folder: Path,
    data: Dataset,
    public: Tensor | None,
    device: torch.device,
    quiet: bool,
    train_baselines: bool = True,
    *,
    other: Dataset | None = None,
) -> bool:
    """Export and measure a run whose last round is done; False if it was finished already.

    Baselines train on the same images, `public` ones included. A process that has not all images
    does not train them. `other` are the images of `probe.on`.
    """
    with locked(folder):
        return _finish(
            folder, data, public, device, quiet=quiet, train_baselines=train_baselines, other=other
        )


def _finish(
    folder: Path,
    data: Dataset,
    public: Tensor | None,
    device: torch.device,
    *,
    quiet: bool,
    train_baselines: bool,
    other: Dataset | None,
) -> bool:
    notify = ignore_message if quiet else print_to_stderr
    experiment = read_experiment(folder, notify)
    snapshot = Store(folder).load(ignore_message, check_rows=False)
    assert snapshot is not None
    evaluation = Evaluation(experiment, data, device, notify=notify, other=other)
    choice = baselines_of(evaluation, folder, train_baselines)
    baselines = Baselines(
        experiment, folder, data, public=public, device=device, names=choice.names, quiet=quiet
    )
    hashes = _hash_inputs(experiment, data, other)
    privacy = private_run.summarise(experiment, folder, snapshot)
    wanted = Wanted(evaluation, snapshot.rounds, hashes, choice.names, privacy)
    damaged = integrity.damaged(folder)
    measured = MEASUREMENTS.isdisjoint(damaged) and is_up_to_date(folder, wanted, notify)
    _remove_damaged(folder, damaged, notify)
    if measured and not damaged and not _can_draw_missing_picture(evaluation, folder, snapshot):
        baselines.repair()
        return False
    if not measured:
        can_be_used = partial(can_be_restored, wanted=wanted, baselines=baselines)
        measured = restore(folder, can_be_used, notify)
    if not measured:
        announce(folder, choice, notify)
    write = partial(_write_outputs, hashes=hashes, damaged=damaged, measured=measured)
    write(evaluation, snapshot, baselines)
    return True


def _can_draw_missing_picture(evaluation: Evaluation, folder: Path, snapshot: Snapshot) -> bool:
    """True if only the picture is missing, and everything that it needs is here."""
    if not picture.is_missing(folder, evaluation) or not can_draw():
        return False
    return bool(models_of(evaluation.experiment, snapshot.sites, snapshot.memory))


def _hash_inputs(
    experiment: Experiment, data: Dataset, other: Dataset | None
) -> dict[str, str | None]:
    """Return the hashes of the images and labels that probes measure on."""
    return {
        "test_images": hash_images(data.test),
        "labels": hash_labels(data, training=not experiment.privacy.enabled),
        **hash_other(other),
    }


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
    if measured:  # results are here; models or the picture were damaged or missing
        results = integrity.read_json(folder, "results.json") or results
    else:
        measure(evaluation, baselines, models, results)
    picture.draw_if_missing(folder, evaluation, models, results)
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
        written = {path.name for path in folder.glob("backbone*.safetensors")}
        if not (folder / picture.PICTURE).is_file():
            written.add(picture.PICTURE)
        integrity.forget_hashes(folder, {*damaged, *written})
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
        if measurable(evaluation, models):
            results["notes"].insert(1, private_run.UNCOVERED)
    if measurable(evaluation, models):
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
    if not measurable(evaluation, models):
        return notes
    for probe in probes(evaluation.experiment):
        for note in evaluation.images.notes(probe):
            if note not in notes:
                notes.append(note)
    return notes
