"""What a finished run leaves: the backbone, the final table, and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssl import assemble, integrity
from fedssl.agree import read_experiment, undamaged
from fedssl.data import Dataset, Images
from fedssl.data.progress import say_nothing, say_on_stderr
from fedssl.drive import drive
from fedssl.errors import ConfigError, FedsslError, RunError
from fedssl.evaluate import Evaluation
from fedssl.experiment import Experiment
from fedssl.feature_check import FeatureCheck
from fedssl.federate import Sites
from fedssl.lock import locked
from fedssl.models import Models, export, models_of, saved_models
from fedssl.provenance import UNKNOWN, code, environment
from fedssl.report.collapse import Collapse
from fedssl.report.picture import MAPPED, draw_run
from fedssl.report.rounds import read_rounds
from fedssl.score import Score
from fedssl.store import Store, write_atomic
from fedssl.tree import State, to_device
from fedssl.up_to_date import hash_images, hash_labels, is_up_to_date

READ = 100  # models whose mistakes are kept


def finish(
    folder: Path, data: Dataset, public: Tensor | None, device: torch.device, quiet: bool, alone: bool = False
) -> bool:
    """Export and measure a run whose last round is done; False if all was there already, and nothing was made again.
    Runs beside it train on the same images, `public` ones included; `alone`: no others are trained, since the images
    are not all here."""
    with locked(folder):
        return _finish(folder, data, public, device, quiet, alone)


def _finish(folder: Path, data: Dataset, public: Tensor | None, device: torch.device, quiet: bool, alone: bool) -> bool:
    say = say_nothing if quiet else say_on_stderr
    experiment = read_experiment(folder, say)
    snapshot = Store(folder).load(say_nothing, check_rows=False)
    assert snapshot is not None
    measured = {"test_images": hash_images(data.test), "labels": hash_labels(data)}
    beside = [name for name in experiment.probe.beside if name == "random" or not alone]
    damaged = integrity.damaged(folder)
    finished = not {*damaged} & {"results.json", "classes.json"} and is_up_to_date(
        folder, experiment, snapshot.rounds, measured, beside, say
    )
    for name in damaged:
        say(f"{folder / name} is damaged: it does not match its recorded hash. It is removed and made again")
        (folder / name).unlink()
    if finished and not damaged:
        _repair_beside(experiment, folder, data, public, device, beside, quiet)
        return False
    models = models_of(experiment, snapshot.sites, snapshot.memory)
    evaluation = Evaluation(experiment, data, device)
    notes, codes = _logged(folder)
    if not models:
        notes.insert(0, "no model was measured: each client has one of its own, and none of them is here")
    if evaluation.images.note:
        notes.insert(0, evaluation.images.note)
    if experiment.algorithm.warning is not None:
        notes.insert(0, experiment.algorithm.warning)
    results: dict[str, Any] = {
        "experiment": experiment.hash(),
        "rounds": snapshot.rounds,
        **measured,
        "models": len(models),
        "environment": environment(device) | {"code": ", ".join(codes)},
        "notes": notes,
        "table": {},
    }
    measurable = evaluation.images.possible and bool(models)
    if measurable:
        said = [note for probe in probes(experiment) for note in evaluation.images.notes(probe)]
        notes += [note for note in dict.fromkeys(said) if note not in notes]
    check_features(experiment, snapshot.sites, data.train.image, device)
    outputs = {*integrity.OUTPUTS, *integrity.outputs(folder)}
    exported = {path.name for path in folder.glob("backbone*.safetensors")}
    integrity.forget_hashes(folder, {*damaged, *exported} if finished else outputs)
    export(experiment, folder, models, data.train.image, snapshot.rounds, notes)
    if finished:  # only the exported models or the picture were damaged
        results = integrity.read_json(folder, "results.json") or results
    else:
        if measurable:
            scores = table(evaluation, folder, public, models, beside, quiet)
            results["table"] = {
                name: {probe: each.summary() for probe, each in row.items()} for name, row in scores.items()
            }
            write_atomic(folder / "classes.json", (json.dumps(by_class(scores, data.test)) + "\n").encode())
        write_atomic(folder / "results.json", (json.dumps(results, indent=2) + "\n").encode())
    if experiment.probe.picture and data.test is not None and data.test.labelled:
        try:
            draw(folder, evaluation, data.test, results["table"], models)
        except ConfigError as problem:  # a missing extra must not hide what was measured
            say_on_stderr(f"no picture: {problem}")
    integrity.record_hashes(folder, {*integrity.OUTPUTS, *integrity.outputs(folder)})
    return True


def _repair_beside(
    experiment: Experiment,
    folder: Path,
    data: Dataset,
    public: Tensor | None,
    device: torch.device,
    beside: list[str],
    quiet: bool,
) -> None:
    """Repair the runs that a finished run was compared with, if any of their files is damaged.

    One that cannot be repaired is reported: the results of the finished run do not depend on it any more.
    """
    for name in beside:
        place = folder / name
        if not (place / "experiment.toml").is_file() or undamaged(place):
            continue
        try:
            drive(_compared(experiment, name), place, data, public, device, name, quiet)
        except FedsslError as problem:
            say_on_stderr(f"{place} is damaged and could not be repaired: {problem}")


def _compared(experiment: Experiment, name: str) -> Experiment:
    """Return the experiment of a run to compare with, with another topology."""
    return experiment.with_changes(
        {"topology.name": name, "probe.every": 0, "probe.beside": [], "probe.picture": False}
    )


def check_features(experiment: Experiment, sites: Sites, image: tuple[int, int, int], device: torch.device) -> None:
    """Refuse to export merged models whose features are not finite, such as those of earlier versions."""
    if not experiment.topology.merges:
        return
    check = FeatureCheck(experiment, image, device)
    for site, state in sites.items():
        fault = check(to_device(state, device))
        if fault is not None:
            raise RunError(f"{site}: {fault}; no backbone was exported")


def _logged(folder: Path) -> tuple[list[str], list[str]]:
    """What is to be noted about how the rounds went, and the code that made them and makes the rest."""
    collapse, lengths, codes, notes = Collapse(), set[int](), dict[str, None](), list[str]()
    for line in read_rounds(folder / "rounds.jsonl"):
        collapse.see(line)
        lengths.add(line["of"])
        codes[line.get("code", UNKNOWN)] = None
    codes[code()] = None
    if len(lengths) > 1:  # not what one run of that length would have given, unless the rate is constant
        notes.append(f"begun as a run of {min(lengths)} rounds and prolonged to {max(lengths)}")
    if collapse.likely:
        notes.append(collapse.likely)
    if len(codes) > 1:
        notes.append(f"made by code that was changed on the way: {', '.join(codes)}")
    return notes, list(codes)


def probes(experiment: Experiment) -> tuple[str, ...]:
    """What a run measures itself with."""
    return ("knn", "linear") if experiment.probe.linear else ("knn",)


def table(
    evaluation: Evaluation, folder: Path, public: Tensor | None, models: Models, beside: list[str], quiet: bool
) -> dict[str, dict[str, Score]]:
    """Every probe for this run's models and for those it is to be seen beside."""
    experiment, data, device = evaluation.experiment, evaluation.data, evaluation.device

    def row(models: Mapping[str, State], apart: frozenset[str] = frozenset()) -> dict[str, Score]:
        return evaluation.measure(models, probes(experiment), apart)

    rows = {"this run": row(models, models.apart)}
    for name in beside:
        if name == "random":
            rows[name] = row(first_models(experiment, data.train.image, device))
            continue
        other = _compared(experiment, name)
        if other.topology == experiment.topology:  # the same training, to the bit
            rows[name] = rows["this run"]
            continue
        drive(other, folder / name, data, public, device, name, quiet)
        trained = saved_models(other, folder / name, say_nothing)
        rows[name] = row(trained, trained.apart)
    return rows


def by_class(scores: Mapping[str, Mapping[str, Score]], test: Images | None) -> dict[str, Any]:
    """What each probe took for what, in plain values; nothing of it where a row has more models than anybody reads."""
    rows = {
        name: {
            probe: {"per_class": each.per_class, "confusion": each.confusion}
            for probe, each in row.items()
            if len(each) <= READ
        }
        for name, row in scores.items()
    }
    return {"classes": list(test.classes) if test is not None else [], "table": rows}


def draw(folder: Path, evaluation: Evaluation, test: Images, table: Mapping[str, Any], after: Models) -> None:
    """picture.png from the rounds log, the table and the first model's view of some test images."""
    some = test.select(torch.arange(min(MAPPED, len(test))))
    before = first_models(evaluation.experiment, evaluation.data.train.image, evaluation.device)
    first, last = (
        evaluation.features(next(iter(models.values())), some.held).cpu().numpy() for models in (before, after)
    )
    rounds = [{key: line[key] for key in ("round", "knn")} for line in read_rounds(folder / "rounds.jsonl")]
    draw_run(folder / "picture.png", rounds, table, first, last, some.labels.numpy(), some.classes)


def first_models(experiment: Experiment, image: tuple[int, int, int], device: torch.device) -> dict[str, State]:
    """The model before the first round, from the first weights the seed gives: what an untrained backbone is worth."""
    method = experiment.method.model_copy(update={"init": None})
    untrained = experiment.model_copy(update={"method": method})
    return {"random": assemble.build_method(untrained, image, device).state}
