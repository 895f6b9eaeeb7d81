"""Measuring on other images than a run was pre-trained on: how far what was learned carries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedssl.changes import settings_class
from fedssl.data import SOURCES, Dataset, Images, Source
from fedssl.data.fetch import find_path
from fedssl.data.progress import Say
from fedssl.data.public import fitted
from fedssl.errors import ConfigError
from fedssl.settings import validate

On = str | Mapping[str, Any] | Dataset  # a data set's name, a table as under [data], or the images themselves


def other_images(on: On, image: tuple[int, int, int], root: Path, say: Say) -> Dataset:
    """The images of another data set, of the size and with the channels (C, H, W) that a run's backbone knows."""
    if not isinstance(on, str | Mapping | Dataset):
        raise ConfigError("images to measure on are a data set's name, a table as under [data], or a Dataset")
    if not isinstance(on, Dataset):
        on = _source({"name": on} if isinstance(on, str) else on, root).load(root, say)
    return Dataset(_fit(on.train, image), None if on.test is None else _fit(on.test, image))


def _source(table: Mapping[str, Any], root: Path) -> Source:
    name = table.get("name")
    if name in (None, "given"):
        raise ConfigError("images to measure on come from a data set that has a name, or as a Dataset in Python")
    if name not in SOURCES.names() and find_path(str(name), root).is_dir():
        how = f"--on folder --set data.path={name} --set data.layout=classes --set data.size=N"
        raise ConfigError(f"--on takes the name of a data set, and {name} is a folder: {how}")
    found = validate(settings_class("data", name), {k: v for k, v in table.items() if k != "name"}, "data")
    assert isinstance(found, Source)
    if found.mean is not None or found.leave_out:
        raise ConfigError("images to measure on are normalised as those of pre-training, and none are left out")
    return found


def _fit(images: Images, image: tuple[int, int, int]) -> Images:
    """By the rules that files are decoded by: the largest centred square, scaled."""
    if images.image == image:
        return images
    return Images(fitted(images.pixels, image), images.label_loader, images.classes)
