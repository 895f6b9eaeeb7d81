"""Projectors and predictors."""

from __future__ import annotations

from torch import nn

from fedssl.nets.norm import BatchNorm1d


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return Linear, BatchNorm, ReLU, Linear: the head of BYOL, as FedEMA uses it.

    Shapes: (n, inputs) to (n, outputs).
    """
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        BatchNorm1d(hidden, relu=True),
        nn.Identity(),  # replaces the ReLU, so that keys are those of the four modules above
        nn.Linear(hidden, outputs),
    )


def expander(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return three Linear with BatchNorm and ReLU between: the head of Barlow Twins and VICReg.

    No biases: BatchNorm removes the first two, and a loss that centres its input the last. Shapes:
    (n, inputs) to (n, outputs).
    """
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=False),
        BatchNorm1d(hidden, relu=True),
        nn.Linear(hidden, hidden, bias=False),
        BatchNorm1d(hidden, relu=True),
        nn.Linear(hidden, outputs, bias=False),
    )


def linear(inputs: int, outputs: int) -> nn.Sequential:
    """Return one Linear in a Sequential, so that its keys are like those of other heads.

    Shapes: (n, inputs) to (n, outputs).
    """
    return nn.Sequential(nn.Linear(inputs, outputs))


def two_layers(inputs: int, outputs: int) -> nn.Sequential:
    """Return Linear, ReLU, Linear, the hidden layer as wide as the input: the head of FedCA.

    Zhang et al., "Federated unsupervised representation learning", 2020, do not state the width.
    Shapes: (n, inputs) to (n, outputs).
    """
    return nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(), nn.Linear(inputs, outputs))
