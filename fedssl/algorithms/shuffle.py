"""Other first weights, where there is but one model to take them from."""

from __future__ import annotations

import torch

from fedssl.tree import State


def shuffled(state: State, stream: torch.Generator) -> State:
    """Another draw, as it were: numbers of each matrix and convolution in random order, all else as it is."""
    other = state.clone()
    for entry in state.layout.entries:
        if entry.role == "weight" and len(entry.shape) in (2, 4):
            view, order = other.view(entry), torch.randperm(entry.size, generator=stream)
            view.copy_(view.flatten()[order.to(view.device)].view(entry.shape))
    return other
