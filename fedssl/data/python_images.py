"""Images passed from Python: tensors, arrays, torch data sets, Hugging Face data sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError, DataError
from fedssl.data.decode import Unreadable
from fedssl.data.decode_whole import to_array
from fedssl.data.images import SOURCES, Dataset, Images, Source
from fedssl.data.images_by_client import join_clients

_CHANNELS = (1, 3)


@SOURCES.register("given")
class PythonImages(Source):
    """Images passed as an argument; there is nothing to read."""

    def read(self, root: Path, notify: Notify) -> Dataset:
        raise ConfigError('data set "given" is not read from files: pass dataset= to fedssl.run')


def from_python(
    train: Any, test: Any = None, owners: Mapping[str, Tensor] | None = None
) -> Dataset:
    """Return a Dataset of images that are held in Python.

    `train` and `test` are each Images, an array or tensor of images, a pair (images, labels), a
    torch data set (or any sequence) of images or of (image, label) pairs, or a Hugging Face data
    set with a column of images. An image is a PIL image, uint8 (C, H, W), (H, W, C) or (H, W), or
    floats of 0..1 in these shapes. All must have one size. Labels are read on first use.

    The owners of training images, for the partition "natural", are given in one of two ways: by a
    dict {client: images} as `train`, or by `owners`, which maps clients to indices into `train`.
    """
    if is_by_client(train):
        if owners is not None:
            raise ConfigError("owners= is used only if train= is not a dict of clients: remove it")
        train_images, owners = join_clients(_images_by_client(train))
    else:
        train_images = _to_images(train)
    test_images = None if test is None else _to_images(test)
    return Dataset(train_images, test_images, owners)


def is_by_client(source: Any) -> bool:
    """True for a dict {client: images}, which the splits of a Hugging Face data set are not."""
    return isinstance(source, Mapping) and not hasattr(source, "column_names")


def _images_by_client(sources: Mapping[Any, Any]) -> dict[str, Images]:
    clients = {}
    for name, source in sources.items():
        if not isinstance(name, str):
            raise DataError(f"the name of a client must be text (got {name!r})")
        try:
            clients[name] = _to_images(source)
        except DataError as problem:
            raise DataError(f'client "{name}": {problem}', problem.detail) from None
    return clients


def _to_images(source: Any) -> Images:
    if is_by_client(source):
        raise DataError("expected one data set, got a dict of data sets")
    if isinstance(source, Images):
        return source
    if isinstance(source, Tensor | np.ndarray):
        return Images(_to_bytes(source))
    if _is_array_pair(source):
        pixels, labels = source
        return Images(_to_bytes(pixels), lambda: torch.as_tensor(labels).reshape(-1))
    if hasattr(source, "column_names") and hasattr(source, "features"):
        return _from_hugging_face(source)
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return _from_items(source)
    raise DataError(
        f"images cannot be taken from a {type(source).__name__}: it has no length or no items"
    )


def _is_array_pair(source: Any) -> bool:
    if not isinstance(source, tuple) or len(source) != 2:
        return False
    return isinstance(source[0], Tensor | np.ndarray)


def _from_items(items: Any) -> Images:
    """Convert a torch data set, or any sequence, of images or of (image, label) pairs."""
    if len(items) == 0:
        raise DataError("the data set passed holds no images")
    first = items[0]
    width = len(first) if isinstance(first, tuple | list) else 0
    if width > 2:
        raise DataError(f"items must be images or (image, label) pairs, not tuples of {width}")
    if width == 0:
        return Images(_stack(items[k] for k in range(len(items))))
    # The labels that come with the images are dropped here; on first use all items are read again.
    pixels = _stack(_column(items, 0))
    if width == 1:
        return Images(pixels)
    return Images(pixels, lambda: _to_labels(_column(items, 1)))


def _from_hugging_face(table: Any) -> Images:
    """Convert a Hugging Face data set; only its features are read, not its labels."""
    columns = table.column_names
    image = _first_of(("image", "img"), columns)
    if image is None or isinstance(columns, Mapping):
        raise DataError(
            "the data set passed needs a column named image and must be one split; "
            f"it has {columns}"
        )
    # With a single column selected, the labels are not even decoded.
    images = table.select_columns([image]) if hasattr(table, "select_columns") else table
    pixels = _stack(_column(images, image))
    label = _first_of(("label", "labels", "fine_label"), columns)
    if label is None:
        return Images(pixels)
    classes = tuple(getattr(table.features[label], "names", None) or ())
    return Images(pixels, lambda: _to_labels(table[label]), classes)


def _column(rows: Any, key: int | str) -> Iterator[Any]:
    """Yield one entry of each row, reading rows by their index."""
    for k in range(len(rows)):
        yield rows[k][key]


def _first_of(names: Iterable[str], columns: Any) -> str | None:
    for name in names:
        if name in columns:
            return name
    return None


def _to_labels(labels: Iterable[Any]) -> Tensor:
    return torch.tensor(list(map(int, labels)), dtype=torch.int64)


def _stack(images: Iterable[Any]) -> Tensor:
    """Return uint8 (N, C, H, W); among colour images, grey ones get three equal channels."""
    pixels = list(map(_one_image, images))
    if any(image.shape[0] == 3 for image in pixels):
        pixels = [image.expand(3, -1, -1) for image in pixels]
    sizes = {tuple(image.shape[1:]) for image in pixels}
    if len(sizes) > 1:
        raise DataError(
            f"all images must have one size, not {min(sizes)} and {max(sizes)}: resize them first"
        )
    return torch.stack(pixels)


def _one_image(image: Any) -> Tensor:
    """Return one image as uint8 (C, H, W)."""
    if isinstance(image, Image.Image):
        try:
            return torch.from_numpy(to_array(image))
        except Unreadable as error:
            raise DataError(f"an image passed from Python {error}") from None
    if isinstance(image, Tensor | np.ndarray):
        return _to_bytes(image[None])[0]
    raise DataError(
        f"an image must be a PIL image, a tensor or an array, not a {type(image).__name__}"
    )


def _to_bytes(images: Tensor | np.ndarray[Any, Any]) -> Tensor:
    """Return uint8 (N, C, H, W) for images with their channels first, last or omitted.

    If both could be channels, tensors have them first and arrays last, as in torch and Pillow.
    """
    pixels = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images))
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    if pixels.ndim != 4:
        raise DataError(f"images must have 3 or 4 dimensions, not the shape {tuple(pixels.shape)}")
    first = pixels.shape[1] in _CHANNELS
    last = pixels.shape[3] in _CHANNELS
    if not (first or last):
        raise DataError(f"images must have 1 or 3 channels; the shape is {tuple(pixels.shape)}")
    prefer_first = first and isinstance(images, Tensor)
    if last and not prefer_first and images.ndim == 4:
        pixels = pixels.permute(0, 3, 1, 2)
    return _scale_to_bytes(pixels.detach().cpu()).contiguous()


def _scale_to_bytes(pixels: Tensor) -> Tensor:
    if pixels.dtype == torch.uint8:
        return pixels
    if not pixels.is_floating_point() or not bool(((pixels >= 0) & (pixels <= 1)).all()):
        raise DataError("images must be uint8, or floats between 0 and 1 before normalisation")
    return (pixels * 255).round().to(torch.uint8)
