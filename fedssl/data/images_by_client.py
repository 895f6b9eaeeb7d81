"""Join the images of several clients to one data set whose owners are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from fedssl.core.errors import DataError
from fedssl.data.images import Images, LabelLoader


def join_clients(clients: Mapping[str, Images]) -> tuple[Images, dict[str, Tensor]]:
    """Return the images of all clients, and the indices of each client's images, by its name.

    Raise DataError, which names two clients, if their images differ in shape or classes, or if only
    one of them has labels.
    """
    if not clients:
        raise DataError("dataset= is an empty dict: it needs the images of at least one client")
    first = next(iter(clients))
    for name in clients:
        _check_alike(first, clients[first], name, clients[name])
    pixels = []
    loaders = []
    owners = {}
    start = 0
    for name, images in clients.items():
        pixels.append(images.pixels)
        owners[name] = torch.arange(start, start + len(images))
        start += len(images)
        if images.label_loader is not None:
            loaders.append(images.label_loader)
    if not loaders:
        return Images(torch.cat(pixels)), owners
    return Images(torch.cat(pixels), partial(_load_all, loaders), clients[first].classes), owners


def _check_alike(first: str, images: Images, second: str, others: Images) -> None:
    """Raise DataError if the images of two clients cannot be in one data set."""
    if images.image_shape != others.image_shape:
        raise DataError(
            "all clients must have images of one shape (channels, height, width), but those of "
            f'"{first}" have {images.image_shape} and those of "{second}" {others.image_shape}: '
            "convert them "
            "first"
        )
    if images.labelled and not others.labelled:
        raise _missing_labels(first, second)
    if others.labelled and not images.labelled:
        raise _missing_labels(second, first)
    if images.classes != others.classes:
        raise DataError(
            f'clients "{first}" and "{second}" have labels of different classes, '
            f"{_listed(images.classes)} and {_listed(others.classes)}: use one list of classes"
        )


def _missing_labels(labelled: str, unlabelled: str) -> DataError:
    return DataError(
        f'client "{labelled}" has labels, but client "{unlabelled}" has none: pass labels for all '
        "clients or for none"
    )


def _listed(classes: Sequence[str]) -> str:
    """Return at most four names of classes."""
    if len(classes) > 4:
        classes = [*classes[:3], "…"]
    return f"({', '.join(classes)})"


def _load_all(loaders: Sequence[LabelLoader]) -> Tensor:
    labels = []
    for load in loaders:
        labels.append(load())
    return torch.cat(labels)
