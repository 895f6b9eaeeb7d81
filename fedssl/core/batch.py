"""The inputs and outputs of a training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """One step's input. B images, V views in a group."""

    index: Tensor  # type: ignore[assignment]  # (B,) rows in the client's data
    images: Tensor  # (B, C, H, W) uint8, not augmented; `method.clean` converts them to an input
    views: tuple[Tensor, ...]  # one (V, B, C, h, w) per ViewGroup; may be ()
    labels: Tensor | None  # only for a method that declares that it learns from them
    draws: Mapping[str, Tensor]  # this step's random numbers
    progress: Tensor  # 0-d, the share of the run that is done


class Encoded(NamedTuple):
    """The outputs of the online network for n images."""

    h: Tensor  # (n, d) features of the backbone
    z: Tensor  # (n, k) projections; h if there is no projector
    p: Tensor  # (n, k) predictions; z if there is no predictor


class Output(NamedTuple):
    """The result of `forward`, for V views of B images.

    A loss does not receive the batch, so its inputs from the batch are here too.
    """

    h: Tensor  # (V, B, d) features of the backbone
    z: Tensor  # (V, B, k) projections
    p: Tensor  # (V, B, k) predictions
    keys: Tensor | None = None  # (V, B, k) from a target network
    # The values that z or p should have: labels (V, B) or pixels (V, B, k).
    expected: Tensor | None = None
    # (B,) the batch's rows in the client's data, for a loss that looks them up in `constants`.
    index: Tensor | None = None  # type: ignore[assignment]


Constants = Mapping[str, Tensor]
"""Constants of a loss, by name, such as cluster assignments."""


class Normalisation(NamedTuple):
    """Per-channel mean and standard deviation of pixels in 0…1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
