"""Random states for the tests of this folder."""

from __future__ import annotations

import torch

from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State

LAYOUT = Layout.of(
    [
        Entry("backbone.conv", (2, 3, 2, 2), "weight"),
        Entry("backbone.scale", (2,), "norm"),
        Entry("backbone.mean", (2,), "statistic"),
        Entry("backbone.count", (), "counter"),
        Entry("projector.weight", (3, 2), "weight"),
        Entry("projector.count", (), "counter"),
        Entry("predictor.weight", (2, 2), "weight"),
        Entry("queue.keys", (2, 2), "buffer"),
        Entry("queue.pointer", (), "counter"),
    ]
)


def random_state(seed: int = 0, layout: Layout = LAYOUT) -> State:
    stream = torch.Generator().manual_seed(seed)
    counts = torch.randint(100, (layout.counts,), generator=stream)
    return State(layout, torch.randn(layout.floats, generator=stream), counts)


def same(a: State, b: State) -> bool:
    return (
        a.layout == b.layout and torch.equal(a.floats, b.floats) and torch.equal(a.counts, b.counts)
    )
