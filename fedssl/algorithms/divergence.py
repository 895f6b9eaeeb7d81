"""How far apart two models are, as FedU and FedEMA measure it."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fedssl.layout import Entry, Layout
from fedssl.tree import State


def layer_mean(one: State, other: State) -> Tensor:
    """The L2 distance of each layer's weights, averaged over the backbone's layers: 0-d, float32.

    Layers are its convolutions, those of shortcuts left out; in a transformer the weight matrices of its blocks. That
    is what the authors' public code of FedU and FedEMA measures, and the scale on which their thresholds lie.
    """
    distances = [(one.view(e) - other.view(e)).norm() for e in layers(one.layout)]
    return torch.stack(distances).mean()


def encoder_norm(one: State, other: State) -> Tensor:
    """The L2 distance over the parameters of backbone and projector, as the papers' boxes have it: 0-d, float32."""
    return one.distance(other, [part for part in ("backbone", "projector") if part in one.layout.parts])


@lru_cache(maxsize=16)
def layers(layout: Layout) -> tuple[Entry, ...]:
    weights = [e for e in layout.entries if e.part == "backbone" and e.role == "weight" and "downsample" not in e.name]
    convolutions = tuple(e for e in weights if len(e.shape) == 4)
    matrices = tuple(e for e in weights if len(e.shape) == 2)
    chosen = convolutions if len(convolutions) > 1 else matrices  # a transformer's one convolution cuts patches
    return chosen or tuple(weights)
