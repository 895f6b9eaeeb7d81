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
    """The outputs of the online network.

    h: the backbone's features (n, d); z: projections (n, k), or h without a projector;
    p: predictions (n, k), or z without a predictor.
    """

    h: Tensor
    z: Tensor
    p: Tensor


class Output(NamedTuple):
    """The result of `forward`, by view: h (V, B, d), z and p (V, B, k), keys (V, B, k) from a
    target network.

    A loss does not receive the batch, so its inputs from the batch are here too. expected: the
    values that z or p should have, labels (V, B) or pixels (V, B, k). index (B,): the batch's rows
    in the client's data, for a loss that looks them up in `constants`.
    """

    h: Tensor
    z: Tensor
    p: Tensor
    keys: Tensor | None = None
    expected: Tensor | None = None
    index: Tensor | None = None  # type: ignore[assignment]


Constants = Mapping[str, Tensor]  # constants of a loss, such as cluster assignments


class Normalisation(NamedTuple):
    """Per-channel mean and standard deviation of pixels in 0…1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
