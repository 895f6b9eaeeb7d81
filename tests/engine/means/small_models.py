"""Small models for tests of means: weights, running statistics and a counter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.engine.means.mean_settings import MeanSettings


def small_model(
    weights: Sequence[float], statistics: Sequence[float] = (0.0,), count: int = 0
) -> State:
    """Return a model with these weights and running statistics, and one counter."""
    layout = Layout.of(
        [
            Entry("backbone.w", (len(weights),), "weight"),
            Entry("backbone.running_mean", (len(statistics),), "statistic"),
            Entry("backbone.n", (), "counter"),
        ]
    )
    return State(layout, torch.tensor([*weights, *statistics]), torch.tensor([count]))


def mean_of(mean: MeanSettings, models: Iterable[State]) -> State:
    """Return a mean of models with the weights 1, 2, 3 …"""
    started = mean.start()
    for weight, model in enumerate(models, start=1):
        started.add(model, weight)
    return started.result()
