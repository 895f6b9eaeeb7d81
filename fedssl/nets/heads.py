"""Projectors and predictors."""

from __future__ import annotations

from torch import nn

from fedssl.nets.norm import BatchNorm1d


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """(n, inputs) to (n, outputs) by Linear, BatchNorm, ReLU, Linear: the head of BYOL, as FedEMA uses it."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        BatchNorm1d(hidden, relu=True),
        nn.Identity(),  # in the ReLU's place: keys are those of the four modules named above
        nn.Linear(hidden, outputs),
    )


def linear(inputs: int, outputs: int) -> nn.Sequential:
    """(n, inputs) to (n, outputs); a Sequential of one, so that heads are named alike."""
    return nn.Sequential(nn.Linear(inputs, outputs))
