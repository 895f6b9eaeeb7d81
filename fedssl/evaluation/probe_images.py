"""The images of `probe.on`: another labelled data set, measured by kNN while a run trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError
from fedssl.core.similar_paths import suggest_path
from fedssl.data import SOURCES, Dataset, Images
from fedssl.data.download import find_path, searched_places
from fedssl.data.folder import background_of, fit_of
from fedssl.data.folder_listing import subfolders
from fedssl.evaluation.evaluate import Evaluation
from fedssl.evaluation.missing_labels import missing_labels
from fedssl.evaluation.models import Models
from fedssl.evaluation.score import Score
from fedssl.evaluation.transfer import MAY_BE_SEEN, Shape, other_images, same_source
from fedssl.experiment.experiment import Experiment

KEY = "probe.on"


def read_probe_images(
    experiment: Experiment, image: Shape, root: Path, notify: Notify
) -> Dataset | None:
    """Return the images of `probe.on` in the shape of the run's images; None without the setting.

    If they have no test part, all of them are test images: kNN then uses one half as labelled
    images and the other as queries. Raise ConfigError if kNN cannot be measured on them.
    """
    if experiment.probe.on is None:
        return None
    table = _table_of(experiment, root)
    data = other_images(
        table,
        image,
        root,
        notify,
        background=background_of(experiment.data),
        fit=fit_of(experiment.data),
        where=KEY,
    )
    if data.test is None or not len(data.test):
        data = Dataset(Images(data.train.pixel_rows), data.train)
    _check_labels(data)
    notify(_description(experiment, data, table))
    return data


def measure_other(evaluation: Evaluation, models: Models) -> Score | None:
    """Return kNN on the images of `probe.on`; None without the setting."""
    if evaluation.other is None:
        return None
    return evaluation.other.measure(models, ("knn",), models.excluded)["knn"]


def probe_images_name(experiment: Experiment) -> str:
    """Return the name of the images of `probe.on`; for a table, its path if it has one."""
    values = experiment.to_dict()["probe"]["on"]
    if isinstance(values, str):
        return values
    return str(values.get("path", values["name"]))


def _table_of(experiment: Experiment, root: Path) -> dict[str, Any]:
    """Return the setting as a table under [data]."""
    on = experiment.to_dict()["probe"]["on"]
    table = dict(on) if isinstance(on, Mapping) else _table_for(on, root)
    if table["name"] == "given":
        raise ConfigError(f"{KEY} cannot be images from Python: name a data set or a folder")
    SOURCES[table["name"]]  # raises for an unknown name
    return table


def _table_for(text: str, root: Path) -> dict[str, Any]:
    """Return the table for a data set's name, or for a path."""
    if text in SOURCES.names():
        return {"name": text}
    path = find_path(text, root)
    if path.is_dir():
        if not subfolders(path):
            raise ConfigError(f"{KEY}: {path} needs one folder of images for each class")
        return {"name": "folder", "path": text, "layout": "classes"}
    if path.suffix == ".npz" and path.is_file():
        return {"name": "npz", "path": text}
    suggestion = suggest_path(text, Path.is_dir, (root, Path()))
    known = ", ".join(name for name in SOURCES.names() if name != "given")
    raise ConfigError(
        f"{KEY}: there is no data set and no folder {searched_places(text, root)}{suggestion}; "
        f"data sets: {known}"
    )


def _check_labels(data: Dataset) -> None:
    """Raise ConfigError if kNN cannot be measured on images."""
    assert data.test is not None
    if not data.test.labelled:
        raise ConfigError(
            f"{KEY}: the {len(data.test):,} images to measure on have no labels: use a folder with "
            "one folder per class, or another labelled data set"
        )
    problem = missing_labels(data, trained_on=False)
    if problem is not None:
        raise ConfigError(f"{KEY}: {problem}")


def _description(experiment: Experiment, data: Dataset, table: Mapping[str, Any]) -> str:
    """Return a line about the images."""
    assert data.test is not None
    text = f"kNN is measured on {probe_images_name(experiment)} too: "
    if data.train.labelled:
        text += f"{len(data.train):,} labelled images and {len(data.test):,} test images"
    else:
        text += f"one half of {len(data.test):,} labelled images votes on the other"
    if same_source(experiment, table) is not None:
        text += f"; {MAY_BE_SEEN}"
    return text
