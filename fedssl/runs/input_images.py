"""Load image files as the input of a backbone, prepared as in training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from fedssl.core.console import ignore_message
from fedssl.core.errors import ConfigError, DataError
from fedssl.data.decode_parallel import decode_all
from fedssl.method import Normalisation
from fedssl.probes.features import as_input


def load_as_input(
    paths: Sequence[str | Path],
    image: tuple[int, int, int],
    normalisation: Normalisation | None,
    background: int = 0,
    pad: bool = False,
) -> Tensor:
    """Return image files as float32 (n, channels, size, size), by the rules of `data.decode`.

    `image` is the shape of the training images, `background` the grey under transparent pixels and,
    with `pad`, around images that are no squares.
    Raises DataError if a file cannot be read; its `detail` names the files.
    """
    channels, height, width = image
    if height != width:
        raise ConfigError(
            f"files are scaled to squares, but the run was trained on images of {height} × {width} "
            "pixels: prepare the images as the training images were"
        )
    if not paths:
        raise ConfigError("there is no file to load: pass at least one path")
    names = [str(path) for path in paths]
    pixels, bad = decode_all(
        names,
        Path,
        height,
        channels=channels,
        notify=ignore_message,
        background=background,
        pad=pad,
    )
    if bad:
        reasons = ", ".join(f"{reason}: {n}" for reason, n in sorted(Counter(bad.values()).items()))
        detail = "\n".join(f"{reason}: {names[position]}" for position, reason in bad.items())
        raise DataError(
            f"{len(bad)} of {len(names)} files cannot be read as images ({reasons}): leave them out",
            detail,
        )
    return as_input(pixels, normalisation)
