"""Distances between two models, as FedU and FedEMA measure them."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.nets.adapters import A, AdapterSettings, B, adapted_layers


def layer_mean(one: State, other: State, adapters: AdapterSettings | None = None) -> Tensor:
    """Return the mean over the backbone's layers of the L2 distance of their weights: 0-d, float32.

    Layers are the convolutions, except those of shortcuts; in a transformer, the weight matrices of
    its blocks. The authors' public code of FedU and FedEMA measures this, and their thresholds are
    on this scale. With adapters, layers are those that have them, and the distance is that of their
    merged weights.
    """
    if adapters is not None:
        return _adapted_layer_mean(one, other, adapters.scale)
    distances = [(one.view(e) - other.view(e)).norm() for e in layers(one.layout)]
    return torch.stack(distances).mean()


def _adapted_layer_mean(one: State, other: State, scale: float) -> Tensor:
    """Return the mean of scale · ‖B₁A₁ − B₂A₂‖ over the pairs of factors."""
    mine = one.tensors()
    theirs = other.tensors()
    distances = []
    for down, up in factor_pairs(one.layout):
        # B₁A₁ − B₂A₂ is one product of factors side by side.
        both_up = torch.cat([mine[up].flatten(1), -theirs[up].flatten(1)], 1)
        both_down = torch.cat([mine[down].flatten(1), theirs[down].flatten(1)], 0)
        distances.append((both_up @ both_down).norm())
    return scale * torch.stack(distances).mean()


def encoder_norm(one: State, other: State) -> Tensor:
    """Return the L2 distance over the parameters of backbone and projector: 0-d, float32.

    This is the measure in the papers' algorithm boxes.
    """
    parts = [part for part in ("backbone", "projector") if part in one.layout.parts]
    return one.distance(other, parts)


@lru_cache(maxsize=16)
def factor_pairs(layout: Layout) -> tuple[tuple[str, str], ...]:
    """Return the names of the factors A and B of each adapter, except those of shortcuts.

    If only shortcuts have adapters, all are returned.
    """
    names = [entry.name for entry in layout.entries if entry.part == "backbone"]
    paths = adapted_layers(names)
    counted = [path for path in paths if "downsample" not in path] or paths
    return tuple((f"{path}.{A}", f"{path}.{B}") for path in counted)


@lru_cache(maxsize=16)
def layers(layout: Layout) -> tuple[Entry, ...]:
    """Return the weights of the backbone over which `layer_mean` averages."""
    weights = []
    for entry in layout.entries:
        shortcut = "downsample" in entry.name
        if entry.part == "backbone" and entry.role == "weight" and not shortcut:
            weights.append(entry)
    convolutions = [entry for entry in weights if len(entry.shape) == 4]
    matrices = [entry for entry in weights if len(entry.shape) == 2]
    if len(convolutions) > 1:
        return tuple(convolutions)
    # The only convolution of a transformer cuts patches.
    return tuple(matrices or weights)
