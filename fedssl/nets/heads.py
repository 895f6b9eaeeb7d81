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


def expander(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """(n, inputs) to (n, outputs) by three Linear with BatchNorm and ReLU between: the head of Barlow Twins and VICReg.

    No biases: BatchNorm takes out the first two, and a loss that centres its input the last.
    """
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=False),
        BatchNorm1d(hidden, relu=True),
        nn.Linear(hidden, hidden, bias=False),
        BatchNorm1d(hidden, relu=True),
        nn.Linear(hidden, outputs, bias=False),
    )


def linear(inputs: int, outputs: int) -> nn.Sequential:
    """(n, inputs) to (n, outputs); a Sequential of one, so that heads are named alike."""
    return nn.Sequential(nn.Linear(inputs, outputs))
