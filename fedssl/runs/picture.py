"""Draw picture.png, the overview of a finished run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedssl.core.console import print_to_stderr, steps
from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import write_atomic
from fedssl.core.state.state import State
from fedssl.data import Images
from fedssl.evaluation.evaluate import Evaluation
from fedssl.evaluation.intervals import accuracy_interval
from fedssl.evaluation.models import Models
from fedssl.evaluation.outcomes import read_outcomes
from fedssl.evaluation.verdict import THIS_RUN, Verdict, judge
from fedssl.experiment.baseline_names import first_model_name
from fedssl.plots.feature_map import MAPPED
from fedssl.plots.run_picture import draw_run
from fedssl.plots.style import encode_png, need_matplotlib
from fedssl.runs.baselines import untrained_models
from fedssl.runs.rounds_log import logged_knn, logged_knn_on, read_rounds

PICTURE = "picture.png"


def is_missing(folder: Path, evaluation: Evaluation) -> bool:
    """True if there is no picture, but the settings ask for one and test images have labels."""
    test = evaluation.data.test
    wanted = evaluation.experiment.probe.picture and test is not None and test.labelled
    return wanted and not (folder / PICTURE).is_file()


def draw_if_missing(
    folder: Path, evaluation: Evaluation, models: Models, results: Mapping[str, Any]
) -> None:
    """Draw the picture if it is missing and models are here: clients may keep theirs."""
    test = evaluation.data.test
    if test is None or not models or not is_missing(folder, evaluation):
        return
    try:
        draw(folder, evaluation, test, results=results, models=models)
    except ConfigError as problem:  # a missing extra must not hide the results
        print_to_stderr(f"no picture: {problem}")


def draw(
    folder: Path,
    evaluation: Evaluation,
    test: Images,
    *,
    results: Mapping[str, Any],
    models: Models,
) -> None:
    """Draw picture.png: the rounds, the table, and features of test images before and after."""
    need_matplotlib()
    mapped = test.select(torch.arange(min(MAPPED, len(test))))
    verdict = _verdict(folder)
    table = results["table"]
    learned = {}
    for probe in table.get(THIS_RUN, {}):
        learned[probe] = evaluation.images.learned_from(probe)
    rounds = list(_accuracies(folder, results))
    with steps("drawing picture.png", 2, evaluation.notify) as show:
        show(0, "features before and after training")
        before, after = features_before_and_after(evaluation, models, mapped)
        show(1, "maps of the features")
        figure = draw_run(
            rounds,
            table,
            intervals=row_intervals(folder),
            gains=_gains(verdict),
            labels_learned=learned,
            verdict=verdict.sentence if verdict is not None else "",
            before=before,
            after=after,
            labels=mapped.labels.numpy(),
            classes=mapped.classes,
        )
        write_atomic(folder / PICTURE, encode_png(figure))


def _accuracies(folder: Path, results: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the accuracies of each round, and whether some were not measured like the results."""
    for line in read_rounds(folder / "rounds.jsonl"):
        knn = logged_knn(line, results)
        knn_on = logged_knn_on(line, results)
        differs = knn != line.get("knn") or knn_on != line.get("knn_on")
        yield {"round": line["round"], "knn": knn, "knn_on": knn_on, "differs": differs}


def _verdict(folder: Path) -> Verdict | None:
    """Return the verdict on the run; None if nothing was measured."""
    outcomes = read_outcomes(folder)
    return judge([outcomes]) if outcomes else None


def _gains(verdict: Verdict | None) -> dict[str, tuple[float, float, float]]:
    """Return the gains over the first baseline, by probe; empty if there is none."""
    if verdict is None or not verdict.gains:
        return {}
    gains = {}
    for probe, figure in next(iter(verdict.gains.values())).items():
        interval = figure.interval
        gains[probe] = (interval.estimate, interval.low, interval.high)
    return gains


def row_intervals(folder: Path) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the ends of the 95% interval of each accuracy, by row and probe."""
    ends = {}
    for key, correct in read_outcomes(folder).items():
        interval = accuracy_interval(correct)
        ends[key] = (interval.low, interval.high)
    return ends


def features_before_and_after(
    evaluation: Evaluation, models: Models, images: Images
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return features (n, d) of images: before training, and of the first trained model."""
    image = evaluation.data.train.image_shape
    name = first_model_name(evaluation.experiment.method)
    untrained = untrained_models(evaluation.experiment, image, evaluation.device, name)
    return _features(evaluation, untrained, images), _features(evaluation, models, images)


def _features(
    evaluation: Evaluation, models: Mapping[str, State], images: Images
) -> NDArray[np.float32]:
    """Return the features (n, d) of the first model."""
    first = next(iter(models.values()))
    features: NDArray[np.float32] = evaluation.features(first, images.pixel_rows).cpu().numpy()
    return features
