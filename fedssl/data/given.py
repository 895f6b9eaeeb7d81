"""Images given from Python: tensors, arrays, torch data sets, Hugging Face data sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedssl.data.decode import Unreadable, to_array
from fedssl.data.images import SOURCES, Dataset, Images, Source
from fedssl.data.progress import Say
from fedssl.errors import ConfigError, DataError

_COLOURS = (1, 3)  # numbers of channels


@SOURCES.register("given")
class Given(Source):
    """Nothing to read: the images come as an argument."""

    def read(self, root: Path, say: Say) -> Dataset:
        raise ConfigError('data set "given" is not read from files: pass dataset= to fedssl.run')


def from_python(train: Any, test: Any = None, owners: Mapping[str, Tensor] | None = None) -> Dataset:
    """A Dataset of whatever holds images in Python.

    `train` and `test` are each Images, an array or tensor of images, a pair (images, labels), a torch data
    set (or any sequence) of images or of (image, label) pairs, or a Hugging Face data set with a column of
    images. An image is a PIL image, uint8 (C, H, W), (H, W, C) or (H, W), or floats of 0..1 in these shapes.
    All must be of one size. Labels are looked at only when somebody asks for them. `owners` maps client ids
    to indices into `train`.
    """
    return Dataset(_images(train), None if test is None else _images(test), owners)


def _images(given: Any) -> Images:
    if isinstance(given, Images):
        return given
    if isinstance(given, Tensor | np.ndarray):
        return Images(_batch(given))
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], Tensor | np.ndarray):
        pixels, labels = given
        return Images(_batch(pixels), lambda: torch.as_tensor(labels).reshape(-1))
    if hasattr(given, "column_names") and hasattr(given, "features"):
        return _from_columns(given)
    if hasattr(given, "__len__") and hasattr(given, "__getitem__"):
        return _from_items(given)
    raise DataError(f"images cannot be taken from a {type(given).__name__}: it has no length or no items")


def _from_items(items: Any) -> Images:
    """A torch data set, or any sequence, of images or of pairs."""
    if len(items) == 0:
        raise DataError("the data set given holds no images")
    first = items[0]
    width = len(first) if isinstance(first, tuple | list) else 0
    if width > 2:
        raise DataError(f"items must be images or (image, label) pairs, not tuples of {width}")
    if width == 0:
        return Images(_stack(items[k] for k in range(len(items))))
    # The labels that come with the images are dropped here; asking for them goes through the items again.
    pixels = _stack(items[k][0] for k in range(len(items)))
    return Images(pixels, (lambda: _numbers(items[k][1] for k in range(len(items)))) if width == 2 else None)


def _from_columns(table: Any) -> Images:
    """A Hugging Face data set, by its features alone."""
    columns = table.column_names
    image = next((name for name in ("image", "img") if name in columns), None)
    if image is None or isinstance(columns, Mapping):
        raise DataError(f"the data set given needs a column named image and must be one split; it has {columns}")
    # With a single column selected, a row's label is never even decoded.
    only = table.select_columns([image]) if hasattr(table, "select_columns") else table
    pixels = _stack(only[k][image] for k in range(len(table)))
    label = next((name for name in ("label", "labels", "fine_label") if name in columns), None)
    if label is None:
        return Images(pixels)
    classes = tuple(getattr(table.features[label], "names", None) or ())
    return Images(pixels, lambda: _numbers(table[label]), classes)


def _numbers(labels: Iterable[Any]) -> Tensor:
    return torch.tensor([int(label) for label in labels], dtype=torch.int64)


def _stack(images: Iterable[Any]) -> Tensor:
    """uint8 (N, C, H, W); where some images are grey and some are not, grey ones get three equal channels."""
    pixels = [_one(image) for image in images]
    if any(image.shape[0] == 3 for image in pixels):
        pixels = [image.expand(3, -1, -1) for image in pixels]
    sizes = {tuple(image.shape[1:]) for image in pixels}
    if len(sizes) > 1:
        small, large = min(sizes), max(sizes)
        raise DataError(f"images given must be of one size, not {small} and {large}: resize them first")
    return torch.stack(pixels)


def _one(image: Any) -> Tensor:
    """uint8 (C, H, W) of one image."""
    if isinstance(image, Image.Image):
        try:
            return torch.from_numpy(to_array(image))
        except Unreadable as failure:
            raise DataError(f"an image given {failure}") from None
    if isinstance(image, Tensor | np.ndarray):
        return _batch(image[None])[0]
    raise DataError(f"an image must be a PIL image, a tensor or an array, not a {type(image).__name__}")


def _batch(images: Tensor | np.ndarray[Any, Any]) -> Tensor:
    """uint8 (N, C, H, W) of images with their channels first, last or left out.

    Where both could be channels, tensors have them first and arrays last, as torch and Pillow do.
    """
    pixels = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images))
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    if pixels.ndim != 4:
        raise DataError(f"images must have 3 or 4 dimensions, not the shape {tuple(pixels.shape)}")
    first, last = pixels.shape[1] in _COLOURS, pixels.shape[3] in _COLOURS
    if not (first or last):
        raise DataError(f"images must have 1 or 3 channels; the shape is {tuple(pixels.shape)}")
    if last and not (first and isinstance(images, Tensor)) and images.ndim == 4:
        pixels = pixels.permute(0, 3, 1, 2)
    return _bytes(pixels.detach().cpu()).contiguous()


def _bytes(pixels: Tensor) -> Tensor:
    if pixels.dtype == torch.uint8:
        return pixels
    if not pixels.is_floating_point() or not bool(((pixels >= 0) & (pixels <= 1)).all()):
        raise DataError("images must be uint8, or floats between 0 and 1 that are not normalised yet")
    return (pixels * 255).round().to(torch.uint8)
