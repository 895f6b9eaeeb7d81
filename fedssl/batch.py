"""What goes into a training step and comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """One step's input. B images, V views in a group."""

    index: Tensor  # type: ignore[assignment]  # (B,) rows in the client's data
    images: Tensor  # (B, C, H, W) uint8, as they are; `method.clean` makes them an input
    views: tuple[Tensor, ...]  # one (V, B, C, h, w) per ViewGroup; may be ()
    labels: Tensor | None  # only for a method that declares it learns from them
    draws: Mapping[str, Tensor]  # this step's random numbers
    progress: Tensor  # 0-d, share of the run done


class Encoded(NamedTuple):
    """h: the backbone's features (n, d); z: projections (n, k), or h where nothing projects; p: predictions (n, k), or
    z where nothing predicts."""

    h: Tensor
    z: Tensor
    p: Tensor


class Output(NamedTuple):
    """What `forward` made of a batch, by view: h (V, B, d), z and p (V, B, k), keys (V, B, k) from a target network.

    A loss sees no batch, so what it needs of one comes along. wanted: what z or p should be, labels (V, B) or pixels
    (V, B, k). index (B,): the batch's rows in the client's data, for a loss that looks them up in `given`.
    """

    h: Tensor
    z: Tensor
    p: Tensor
    keys: Tensor | None = None
    wanted: Tensor | None = None
    index: Tensor | None = None  # type: ignore[assignment]


Given = Mapping[str, Tensor]


class Normalisation(NamedTuple):
    """Per-channel mean and standard deviation of pixels in 0…1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
