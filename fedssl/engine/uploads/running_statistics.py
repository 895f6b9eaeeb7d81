"""Validate the running statistics of BatchNorm layers in an upload, and measure their shift."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree

EPSILON = 1e-5  # added to variances, as BatchNorm does
MEAN = "running_mean"
VARIANCE = "running_var"
# Layers of heads have one activation per image and channel, so their statistics are noisier than
# those of a backbone.
HEAD_SLACK = 4.0


def variance_fault(upload: Tree) -> str | None:
    """Name the first running variance of an upload that is negative; None if there is none."""
    for value in upload.values():
        if isinstance(value, State):
            fault = _negative_variance(value)
            if fault is not None:
                return fault
    return None


def _negative_variance(state: State) -> str | None:
    index = _index(state.layout, state.layout, state.floats.device)
    if index is None or bool((state.floats[index.variances] >= 0).all()):
        return None
    for entry in _entries(state.layout, VARIANCE):
        if bool((state.view(entry) < 0).any()):
            return f"{entry.name} is negative"
    return None  # a NaN, which `check_update` reports


def statistics_shift(sent: State, back: State) -> float | None:
    """Return how far training moved a model's running statistics; None if it has none.

    The unit is a standard deviation of a layer. A channel's activations are summarised as N(m, σ²).
    The 2-Wasserstein distance between two such summaries is √((m − m')² + (σ − σ')²). Its root mean
    square over a layer's channels is divided by the layer's own scale, the root mean variance that
    was sent, so that dead channels do not count; the result is the largest over layers, where
    layers of heads count a quarter.
    """
    in_back = _index(back.layout, sent.layout, back.floats.device)
    in_sent = _index(sent.layout, back.layout, sent.floats.device)
    if in_back is None or in_sent is None:
        return None
    sent_variance = sent.floats[in_sent.variances].double() + EPSILON
    variance = back.floats[in_back.variances].double().clamp(min=0) + EPSILON
    moved = (back.floats[in_back.means].double() - sent.floats[in_sent.means].double()).square()
    moved += (variance.sqrt() - sent_variance.sqrt()).square()
    zeros = torch.zeros(in_back.layers, dtype=torch.float64, device=moved.device)
    distance = zeros.index_add(0, in_back.layer, moved)
    scale = zeros.index_add(0, in_back.layer, sent_variance)
    return float(((distance / scale).sqrt() / in_back.slack).max())


class _Index(NamedTuple):
    """The positions of all layers' statistics in a float row, (channels,) each, in one order."""

    means: Tensor
    variances: Tensor
    layer: Tensor  # the number of each channel's layer
    slack: Tensor  # (layers,)

    @property
    def layers(self) -> int:
        return len(self.slack)


@lru_cache(maxsize=64)
def _index(layout: Layout, other: Layout, device: torch.device) -> _Index | None:
    """Return the positions, in a row of `layout`, of the layers that both layouts have."""
    means: list[Tensor] = []
    variances: list[Tensor] = []
    numbers: list[Tensor] = []
    slack: list[float] = []
    for mean in _entries(layout, MEAN):
        variance = mean.name.removesuffix(MEAN) + VARIANCE
        in_both = mean.name in other.offsets and variance in other.offsets
        if in_both and variance in layout.offsets:
            channel = torch.arange(mean.size)
            numbers.append(torch.full((mean.size,), len(numbers)))
            slack.append(_slack(mean.name))
            means.append(layout.offsets[mean.name] + channel)
            variances.append(layout.offsets[variance] + channel)
    if not means:
        return None
    return _Index(
        torch.cat(means).to(device),
        torch.cat(variances).to(device),
        torch.cat(numbers).to(device),
        torch.tensor(slack, dtype=torch.float64, device=device),
    )


def _slack(name: str) -> float:
    """Return the factor by which a layer's statistics may move farther than a backbone's."""
    if "backbone" in name.split(".")[:2]:
        return 1.0
    return HEAD_SLACK


def _entries(layout: Layout, suffix: str) -> list[Entry]:
    return [
        entry
        for entry in layout.entries
        if entry.role == "statistic" and entry.name.endswith(suffix)
    ]
