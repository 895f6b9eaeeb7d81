"""The images of a run: read by their names, or passed from Python, as its backbone may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedssl import nets
from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError
from fedssl.data import Dataset, from_python
from fedssl.evaluation.probe_images import read_probe_images
from fedssl.experiment.client_data import read_data, read_public, with_given_images
from fedssl.experiment.experiment import Experiment


class RunImages(NamedTuple):
    """All images that an experiment uses."""

    data: Dataset
    public: Tensor | None  # images that everyone may see
    other: Dataset | None  # those of `probe.on`


def read_images(experiment: Experiment, root: Path, dataset: Any, notify: Notify) -> RunImages:
    """Read the images of an experiment; `dataset` are images passed from Python."""
    data = read_data(experiment, root, dataset, notify)
    public = read_public(experiment, data, root, notify)
    other = read_probe_images(experiment, data.train.image_shape, root, notify)
    return RunImages(data, public, other)


def with_given_inputs(changes: dict[str, Any], dataset: Any, backbone: Any) -> dict[str, Any]:
    """Return changes by dotted key that make an experiment use what was passed from Python."""
    if backbone is not None:
        changes = {**changes, "method.backbone": nets.give_backbone(backbone)}
    if dataset is not None:
        changes = with_given_images(changes, dataset)
    return changes


def images_from_python(dataset: Any, test: Any) -> Dataset | None:
    """Return the images that a caller passes; None if there are none."""
    if dataset is not None and not isinstance(dataset, Dataset):
        return from_python(dataset, test)
    if test is not None:
        raise ConfigError(
            "test= is used only together with training images in dataset=; a fedssl Dataset "
            "contains its test images already"
        )
    return dataset


def check_same_backbone(experiment: Experiment, backbone: Any) -> None:
    """Raise ConfigError if a backbone passed from Python is not the one that a run has."""
    given = nets.give_backbone(backbone)
    if experiment.method.backbone != given:
        raise ConfigError(
            f'the backbone passed from Python is "{given}", but the run has '
            f'"{experiment.method.backbone}": pass a module with the same layers'
        )
