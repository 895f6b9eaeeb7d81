"""Validate the running statistics of BatchNorm layers in an upload, and measure how far they moved."""

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
HEAD_SLACK = 4.0  # heads have one activation per image and channel, so their statistics are noisier than a backbone's


def variance_fault(upload: Tree) -> str | None:
    """Name the first running variance of an upload that is negative; None if there is none."""
    faults = (_negative_variance(value) for value in upload.values() if isinstance(value, State))
    return next((fault for fault in faults if fault is not None), None)


def _negative_variance(state: State) -> str | None:
    index = _index(state.layout, state.layout, state.floats.device)
    if index is None or bool((state.floats[index.variances] >= 0).all()):
        return None
    for entry in _entries(state.layout, VARIANCE):
        if bool((state.view(entry) < 0).any()):
            return f"{entry.name} is negative"
    return None  # it is not finite, which is checked elsewhere


def statistics_shift(sent: State, back: State) -> float | None:
    """How far training moved a model's running statistics, in standard deviations of its layers; None without any.

    A channel's activations are summarised as N(m, σ²). The 2-Wasserstein distance between two such summaries is
    √((m − m')² + (σ − σ')²). Its root mean square over a layer's channels is divided by the layer's own scale, the
    root mean variance that was sent, so that dead channels do not count; the result is the largest over layers, where
    layers of heads count a quarter.
    """
    ours = _index(back.layout, sent.layout, back.floats.device)
    theirs = _index(sent.layout, back.layout, sent.floats.device)
    if ours is None or theirs is None:
        return None
    sent_variance = sent.floats[theirs.variances].double() + EPSILON
    variance = back.floats[ours.variances].double().clamp(min=0) + EPSILON
    moved = (back.floats[ours.means].double() - sent.floats[theirs.means].double()).square()
    moved += (variance.sqrt() - sent_variance.sqrt()).square()
    zeros = torch.zeros(ours.layers, dtype=torch.float64, device=moved.device)
    distance = zeros.index_add(0, ours.layer, moved)
    scale = zeros.index_add(0, ours.layer, sent_variance)
    return float(((distance / scale).sqrt() / ours.slack).max())


class _Index(NamedTuple):
    """Where the statistics of all layers are in a float row: (channels,) each, in the same order."""

    means: Tensor
    variances: Tensor
    layer: Tensor  # the number of each channel's layer
    slack: Tensor  # (layers,)

    @property
    def layers(self) -> int:
        return len(self.slack)


@lru_cache(maxsize=64)
def _index(layout: Layout, other: Layout, device: torch.device) -> _Index | None:
    """The layers that both layouts have, as positions in a row of the first."""
    common = {entry.name for entry in other.entries}
    means: list[Tensor] = []
    variances: list[Tensor] = []
    numbers: list[Tensor] = []
    slack: list[float] = []
    for mean in _entries(layout, MEAN):
        name = mean.name.removesuffix(MEAN) + VARIANCE
        if mean.name in common and name in common and name in layout.offsets:
            channel = torch.arange(mean.size)
            numbers.append(torch.full((mean.size,), len(numbers)))
            slack.append(1.0 if "backbone" in mean.name.split(".")[:2] else HEAD_SLACK)
            means.append(layout.offsets[mean.name] + channel)
            variances.append(layout.offsets[name] + channel)
    if not means:
        return None
    return _Index(
        torch.cat(means).to(device),
        torch.cat(variances).to(device),
        torch.cat(numbers).to(device),
        torch.tensor(slack, dtype=torch.float64, device=device),
    )


def _entries(layout: Layout, suffix: str) -> list[Entry]:
    return [
        entry
        for entry in layout.entries
        if entry.role == "statistic" and entry.name.endswith(suffix)
    ]
