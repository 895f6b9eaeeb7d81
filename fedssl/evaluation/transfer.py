"""Other images than those of pre-training, to measure how well features transfer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError
from fedssl.core.settings import validate
from fedssl.data import SOURCES, Dataset, Images, Source
from fedssl.data.download import find_path
from fedssl.data.public import fitted
from fedssl.experiment.overrides import settings_class

# The name of a data set, a table as under [data], or the images.
On = str | Mapping[str, Any] | Dataset


def other_images(on: On, image: tuple[int, int, int], root: Path, notify: Notify) -> Dataset:
    """Return the images of another data set, in the shape (C, H, W) that a run's backbone takes."""
    if not isinstance(on, str | Mapping | Dataset):
        raise ConfigError(
            "on= must be the name of a data set, a table of settings as under [data], or a "
            f"fedssl Dataset (got {type(on).__name__})"
        )
    if isinstance(on, str):
        on = {"name": on}
    if not isinstance(on, Dataset):
        on = _source(on, root).load(root, notify)
    if on.test is None:
        return Dataset(_fit(on.train, image), None)
    return Dataset(_fit(on.train, image), _fit(on.test, image))


def _source(table: Mapping[str, Any], root: Path) -> Source:
    """Return the source that a table describes; raise ConfigError if it cannot be used here."""
    settings = dict(table)
    name = settings.pop("name", None)
    if name in (None, "given"):
        raise ConfigError(
            "the images to measure on need the name of a data set, for example --on cifar10; "
            "in Python, images in memory are passed as a fedssl Dataset"
        )
    if name not in SOURCES.names() and find_path(str(name), root).is_dir():
        options = f"--on folder --set data.path={name} --set data.layout=classes --set data.size=N"
        raise ConfigError(
            f"--on takes the name of a data set, but {name} is a folder: use {options}"
        )
    source = validate(settings_class("data", name), settings, "data")
    assert isinstance(source, Source)
    if source.mean is not None or source.leave_out:
        raise ConfigError(
            "data.mean, data.std and data.leave_out cannot be set for the images to measure on: "
            "they are normalised like the training images, and all of them are used"
        )
    return source


def _fit(images: Images, image: tuple[int, int, int]) -> Images:
    """Crop and scale images as decoded files are: the largest centred square, scaled."""
    if images.image == image:
        return images
    return Images(fitted(images.pixels, image), images.label_loader, images.classes)
