"""Make a report: one HTML file about a run, or about several compared runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedssl.core.console import Notify, print_to_stderr
from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import check_replaceable, replaced_file
from fedssl.data import Dataset
from fedssl.pages.report.accuracy import accuracy_part
from fedssl.pages.report.appendix import experiment_part, versions_part
from fedssl.pages.report.charts import Chart
from fedssl.pages.report.document import Document, Part
from fedssl.pages.report.evaluation_images import ImageFacts, look_at_images
from fedssl.pages.report.image_parts import (
    map_part,
    neighbour_part,
    partition_part,
    pictures_note,
    times,
)
from fedssl.pages.report.overview import head, settings_part
from fedssl.pages.report.round_parts import (
    communication_part,
    curve_parts,
    guard_part,
    privacy_part,
)
from fedssl.pages.report.several_runs import comparison_document
from fedssl.pages.report.training import Training, read_training
from fedssl.runs.resume_checks import EXPERIMENT
from fedssl.runs.run_files import REPORT
from fedssl.runs.summary import RunSummary, read_runs

MODE = 0o600  # the page shows images, and how many images clients have


def report(
    dirs: Sequence[str | Path] | str | Path,
    out: str | Path | None = None,
    *,
    images: bool = True,
    data_dir: str | Path | None = None,
    device: str = "auto",
    dataset: Dataset | None = None,
    notify: Notify = print_to_stderr,
) -> Path:
    """Write a report on run directories, or on folders that contain some, and return its path.

    By default it is DIR/report.html for one run, and report.html in the current folder for several.
    Without `images`, no picture of an image is part of the page. `data_dir` has the data sets, and
    `dataset` the images of a run that was started with images from Python: maps, neighbours and
    classes of clients need them. `device` computes the features for maps and neighbours. Raises
    ConfigError if there is no run, or if several runs cannot be compared.
    """
    named = [dirs] if isinstance(dirs, str | Path) else list(dirs)
    runs = read_runs(list(map(Path, named)), notify)
    if not runs:
        raise ConfigError("there is no measured run to report on: name a run directory itself")
    default = runs[0].folder / REPORT
    if len(runs) > 1:
        default = Path(REPORT)
    target = Path(out or default)
    check_replaceable(target)
    if len(runs) > 1:
        document = comparison_document(runs)
    else:
        root = None if data_dir is None else Path(data_dir)
        facts = look_at_images(runs[0].folder, root, device, notify, dataset)
        document = run_document(runs[0], facts, images=images)
    page = document.render().encode()
    with replaced_file(target, MODE) as file:
        file.write(page)
    return target


def run_document(run: RunSummary, facts: ImageFacts, *, images: bool) -> Document:
    """Return the report on one run."""
    training = read_training(run)
    charts: dict[str, Chart] = {}
    data: dict[str, Any] = {"charts": charts}
    parts: list[Part | None] = [settings_part(run, training, facts), accuracy_part(run)]
    parts += curve_parts(run, training, charts)
    parts.append(partition_part(facts, training))
    parts += _feature_parts(run, facts, images, data)
    parts += _closing_parts(run, training, facts, images=images, charts=charts)
    title = f"{run.folder.resolve().name} – fedssl report"
    return Document(title, head(run, training, facts), list(filter(None, parts)), data)


def _feature_parts(
    run: RunSummary, facts: ImageFacts, images: bool, data: dict[str, Any]
) -> list[Part]:
    features = facts.features
    if features is None:
        return []
    parts = []
    if features.positions is not None:
        part, data["map"] = map_part(features, facts, times(run), images)
        parts.append(part)
    if images:
        parts.append(neighbour_part(features, times(run)))
    return parts


def _closing_parts(
    run: RunSummary,
    training: Training,
    facts: ImageFacts,
    *,
    images: bool,
    charts: dict[str, Chart],
) -> list[Part | None]:
    return [
        communication_part(training, charts),
        guard_part(training),
        privacy_part(run, training, charts),
        experiment_part({EXPERIMENT: run.experiment}),
        versions_part([run], training.codes, pictures_note(facts, images)),
    ]
