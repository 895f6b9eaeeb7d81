"""Prepare images for a trained backbone exactly as training did."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedssl.core.batch import Normalisation
from fedssl.core.console import ignore_message
from fedssl.core.errors import ConfigError, DataError
from fedssl.data import decode
from fedssl.data.decode import Array, Unreadable
from fedssl.data.decode_parallel import decode_all
from fedssl.data.folder import BACKGROUNDS, Background, Fit
from fedssl.data.folder_listing import printable
from fedssl.probes.features import as_input

OneImage = str | Path | bytes | Image.Image | Tensor | np.ndarray
ImageOrImages = OneImage | Sequence[OneImage]
ACCEPTED = (
    "a path, the bytes of an image file, a PIL image, a uint8 tensor (C, H, W), a uint8 array "
    "(H, W) or (H, W, C), or a sequence of these"
)


class Preprocessing(NamedTuple):
    """Turns images into the input of a backbone, by the rules of its training.

    Call it with one image for a float32 tensor (C, H, W), as a transform of torchvision does, or
    with a sequence of images for a batch (n, C, H, W). An image is a path, the bytes of an image
    file, a PIL image, a uint8 tensor (C, H, W), or a uint8 array (H, W) or (H, W, C).
    """

    image: tuple[int, int, int]  # channels, height and width of the backbone's input
    mean: tuple[float, ...] | None = None  # per channel, of pixels / 255; None: not normalised
    std: tuple[float, ...] | None = None
    fit: Fit = "crop"  # how files become squares
    background: Background = "black"  # under transparent pixels, and around padded images

    def __call__(self, images: ImageOrImages) -> Tensor:
        """Return one image as (C, H, W), or a sequence of images as a batch (n, C, H, W)."""
        if isinstance(images, Tensor | np.ndarray) and images.ndim == 4:
            return self.from_pixels(self._batch(images))
        if isinstance(images, OneImage):
            return self.from_pixels(self.pixels([images]))[0]
        return self.from_pixels(self.pixels(images))

    @property
    def normalisation(self) -> Normalisation | None:
        """The mean and standard deviation of the channels; None if pixels are only scaled."""
        if self.mean is None or self.std is None:
            return None
        return Normalisation(self.mean, self.std)

    def from_pixels(self, pixels: Tensor) -> Tensor:
        """Return uint8 pixels (n, C, H, W) as the input of the backbone."""
        return as_input(pixels, self.normalisation)

    def pixels(self, images: Sequence[OneImage]) -> Tensor:
        """Return images as uint8 pixels (n, C, H, W), before they are normalised.

        Raise DataError if a file cannot be read; its `detail` names the files.
        """
        if len(images) == 0:
            raise ConfigError("there is no file to load: pass at least one path")
        self.check_square()
        if all(isinstance(image, str | Path) for image in images):
            pixels, bad = self.decode(list(map(str, images)), Path)  # in threads
        else:
            pixels, bad = self._fit_each(images)
        if bad:
            raise _unreadable(images, bad)
        return pixels

    def decode(
        self, names: Sequence[str], source: Callable[[str], Path]
    ) -> tuple[Tensor, dict[int, str]]:
        """Return the pixels of the readable files `source(name)`, and why others are not."""
        return decode_all(
            names,
            source,
            self.image[1],
            channels=self.image[0],
            notify=ignore_message,
            background=BACKGROUNDS[self.background],
            pad=self.fit == "pad",
        )

    def _fit_each(self, images: Sequence[OneImage]) -> tuple[Tensor, dict[int, str]]:
        """Return the pixels of the readable images of any kind, and why others are not."""
        rows = []
        bad: dict[int, str] = {}
        for position, image in enumerate(images):
            try:
                rows.append(torch.from_numpy(self._fit(image)))
            except Unreadable as problem:
                bad[position] = str(problem)
        if bad:
            return torch.empty(0), bad
        return torch.stack(rows), bad

    def _fit(self, image: OneImage) -> Array:
        """Return one image as uint8 pixels (C, size, size)."""
        channels, size, _ = self.image
        background = BACKGROUNDS[self.background]
        pad = self.fit == "pad"
        if isinstance(image, str):
            image = Path(image)
        if isinstance(image, Path | bytes):
            return decode.decode(image, size, channels, background, pad)
        picture = _as_picture(image)
        with decode.damage_as_unreadable():
            upright = decode.apply_orientation(picture)
            return decode.fit(upright, size, channels, background, pad)

    def check_square(self) -> None:
        """Raise ConfigError if files cannot be turned into the backbone's input."""
        channels, height, width = self.image
        if channels not in (1, 3):
            raise ConfigError(
                f"image files have 1 or 3 channels, but this backbone takes {channels}: prepare "
                "the images as the training images were, and pass tensors to the backbone"
            )
        if height != width:
            raise ConfigError(
                f"files are scaled to squares, but the run was trained on images of {height} × "
                f"{width} pixels: prepare the images as the training images were"
            )

    def describe(self) -> str:
        """Return the steps as one sentence."""
        channels, height, width = self.image
        steps = ["apply the EXIF orientation"]
        if self.fit == "pad":
            steps.append(f"scale the longer side to {height} and pad with {self.background}")
        else:
            steps.append(f"crop the largest centred square, scale it to {height} × {width}")
        colour = "grey" if channels == 1 else "RGB"
        steps.append(f"convert to {colour}, transparent pixels over {self.background}")
        steps.append("divide by 255")
        if self.mean is not None and self.std is not None:
            steps.append(f"subtract {list(self.mean)} and divide by {list(self.std)}")
        return "; ".join(steps)

    def _batch(self, images: Tensor | np.ndarray) -> Tensor:
        """Return a batch as uint8 pixels; one that has the right size is used as it is."""
        if (
            isinstance(images, Tensor)
            and images.dtype == torch.uint8
            and images.shape[1:] == self.image
        ):
            return images
        return self.pixels(list(images))


def preprocessing_of(header: Mapping[str, str]) -> Preprocessing:
    """Return the preprocessing in the header of an exported backbone."""
    channels, height, width = json.loads(header["image"])
    fit: Fit = "crop"
    if header.get("fit") == "pad":
        fit = "pad"
    background: Background = "black"
    if header.get("background") == "white":
        background = "white"
    return Preprocessing(
        image=(int(channels), int(height), int(width)),
        mean=_numbers(header, "mean"),
        std=_numbers(header, "std"),
        fit=fit,
        background=background,
    )


def _numbers(header: Mapping[str, str], key: str) -> tuple[float, ...] | None:
    """Return the numbers under a key, or None."""
    numbers = json.loads(header.get(key, "null"))
    if numbers is None:
        return None
    return tuple(map(float, numbers))


def _as_picture(image: Image.Image | Tensor | np.ndarray) -> Image.Image:
    """Return one image as a PIL image; raise ConfigError for arrays of other types and shapes."""
    if isinstance(image, Image.Image):
        return image
    array = image
    if isinstance(array, Tensor):
        if array.ndim != 3:
            raise ConfigError(f"got a tensor of shape {tuple(array.shape)}: pass {ACCEPTED}")
        array = array.detach().cpu().permute(1, 2, 0).numpy()
    if not isinstance(array, np.ndarray):
        raise ConfigError(f"got a {type(image).__name__}: pass {ACCEPTED}")
    if array.dtype != np.uint8:
        raise ConfigError(
            f"got numbers of type {array.dtype}: pass uint8 pixels from 0 to 255, or pass a tensor "
            "that is already normalised to the backbone itself"
        )
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] in (3, 4)):
        raise ConfigError(f"got an array of shape {array.shape}: pass {ACCEPTED}")
    return Image.fromarray(np.ascontiguousarray(array))


def _unreadable(images: Sequence[OneImage], bad: Mapping[int, str]) -> DataError:
    reasons = ", ".join(f"{reason}: {n}" for reason, n in sorted(Counter(bad.values()).items()))
    lines = []
    for position, reason in bad.items():
        image = images[position]
        name = printable(str(image)) if isinstance(image, str | Path) else f"image {position}"
        lines.append(f"{reason}: {name}")
    detail = "\n".join(lines)
    if len(images) == 1:
        return DataError(f"the image cannot be read ({reasons}): pass another one", detail)
    return DataError(
        f"{len(bad)} of {len(images)} files cannot be read as images ({reasons}): remove them",
        detail,
    )
