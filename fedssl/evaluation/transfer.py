"""Other images than those of pre-training, to measure how well features transfer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import Field

from fedssl.core.console import Notify, print_to_stderr
from fedssl.core.errors import ConfigError
from fedssl.core.settings import LARGEST_VIEW, Settings, validate
from fedssl.data import SOURCES, Dataset, Images, Source
from fedssl.data.download import find_path
from fedssl.data.folder import BACKGROUNDS, Background, Fit, background_of, fit_of
from fedssl.data.public import fitted
from fedssl.evaluation.evaluate import Evaluation
from fedssl.evaluation.models import Models
from fedssl.evaluation.score import Score
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.overrides import settings_class
from fedssl.probes import PROBES

# The name of a data set, a table as under [data], or the images.
On = str | Mapping[str, Any] | Dataset

MAY_BE_SEEN = (
    "the run was trained on this data set, so images that it is measured on may have been used in "
    "training"
)

Shape = tuple[int, int, int]  # channels, height, width


class Size(Settings):
    """The side in pixels at which other images are measured; None: that of the run's images."""

    size: int | None = Field(None, ge=1, le=LARGEST_VIEW)


def other_images(
    on: On,
    image: Shape,
    root: Path,
    notify: Notify,
    *,
    background: Background = "black",
    fit: Fit = "crop",
    where: str = "data",
) -> Dataset:
    """Return the images of another data set, in the shape (C, H, W) of a run's images.

    In a table, `size` sets another side, for any data set; channels are always those of the run.
    Files are decoded with `background` and `fit` unless the table sets others. Errors name the
    table as `where`.
    """
    if not isinstance(on, str | Mapping | Dataset):
        raise ConfigError(
            "on= must be the name of a data set, a table of settings as under [data], or a "
            f"fedssl Dataset (got {type(on).__name__})"
        )
    if isinstance(on, str):
        on = {"name": on}
    if not isinstance(on, Dataset):
        size = validate(Size, {"size": on.get("size")}, where).size
        if size is not None:
            image = (image[0], size, size)
        if on.get("name") == "folder":
            on = {"background": background, "fit": fit, **on}
        on = _source(on, image, root, where).load(root, notify)
    _report_conversion(on.train.image_shape, image, notify, where)
    to_image = partial(_to_image, image=image, background=BACKGROUNDS[background], pad=fit == "pad")
    if on.test is None:
        return Dataset(to_image(on.train), None)
    return Dataset(to_image(on.train), to_image(on.test))


def _source(table: Mapping[str, Any], image: Shape, root: Path, where: str) -> Source:
    """Return the source that a table describes; raise ConfigError if it cannot be used here."""
    settings = dict(table)
    name = settings.pop("name", None)
    if name in (None, "given"):
        raise ConfigError(
            "the images to measure on need the name of a data set, for example --on cifar10; "
            "in Python, images in memory are passed as a fedssl Dataset"
        )
    if name not in SOURCES.names() and find_path(str(name), root).is_dir():
        options = f"--on folder --set data.path={name} --set data.layout=classes"
        raise ConfigError(
            f"--on takes the name of a data set, but {name} is a folder: use {options}"
        )
    cls = settings_class("data", name)
    settings.pop("size", None)
    if "size" in cls.model_fields:
        settings = {"channels": image[0], "size": image[1], **settings}
    source = validate(cls, settings, where)
    assert isinstance(source, Source)
    if source.mean is not None or source.leave_out:
        raise ConfigError(
            f"{where}.mean, {where}.std and {where}.leave_out cannot be set for the images to "
            "measure on: they are normalised like the training images, and all of them are used"
        )
    return source


def _report_conversion(found: Shape, image: Shape, notify: Notify, where: str) -> None:
    """Print a line if images are converted to another shape."""
    if found == image:
        return
    notify(
        f"images of {found} (channels, height, width) are converted to {image}, the shape of the "
        f"run's images unless {where}.size sets another"
    )


def _to_image(images: Images, *, image: Shape, background: int, pad: bool) -> Images:
    """Crop or pad, and scale, images as decoded files are."""
    if images.image_shape == image:
        return images
    pixels = fitted(images.pixels, image, background=background, pad=pad)
    return Images(pixels, images.label_loader, images.classes)


class OtherImages(NamedTuple):
    """Images to measure a run on, and the shape of the run's own."""

    on: On
    image: Shape
    root: Path  # the folder of data sets


def transfer_score(
    experiment: Experiment, probe: str, where: OtherImages, models: Models, device: torch.device
) -> Score:
    """Return a probe's score on other images than those of pre-training.

    `experiment` has the settings of the probe.
    """
    if PROBES[probe].learns == "nothing":
        raise ConfigError(
            f'probe "{probe}" predicts only the classes that the run was trained on, so it '
            'cannot measure on another data set: choose another probe, such as "linear"'
        )
    trained = experiment.data
    data = other_images(
        where.on,
        where.image,
        where.root,
        print_to_stderr,
        background=background_of(trained),
        fit=fit_of(trained),
    )
    # Images left out of pre-training are not among these.
    all_images = experiment.with_changes({"data.leave_out": 0.0})
    evaluation = Evaluation(all_images, data, device, seen=False, notify=print_to_stderr)
    score = evaluation.measure(models, (probe,), models.excluded)[probe]
    if same_source(experiment, where.on) is not None:
        score.add_note(MAY_BE_SEEN)
    return score


def trained_on(experiment: Experiment, on: On) -> bool:
    """True if these are the images of the run itself."""
    table = same_source(experiment, on)
    trained = experiment.to_dict()["data"]
    return table is not None and trained | table == trained


def same_source(experiment: Experiment, on: On) -> dict[str, Any] | None:
    """Return `on` as a table if it is the data set of the run, whichever part; else None."""
    table = {"name": on} if isinstance(on, str) else on
    trained = experiment.to_dict()["data"]
    if not isinstance(table, Mapping) or trained["name"] == "given":
        return None
    if trained["name"] != table.get("name") or _path(trained) != _path(table):
        return None
    return dict(table)


def _path(table: Mapping[str, Any]) -> Path | None:
    return Path(table["path"]) if "path" in table else None
