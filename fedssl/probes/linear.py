"""Linear evaluation: a softmax layer on frozen features, no augmentation; the last epoch counts, never the best.

protocol.py has the papers' settings. Departures: layers start alike whatever the paper, uniform in ±1/√d, where MoCo's
are normal with deviation 0.01.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.optim import SGD, Adam, Optimizer
from fedssl.probes.features import Labelled
from fedssl.probes.protocol import LINEAR, Protocol
from fedssl.seeds import generator

Solver = Literal["protocol", "lbfgs"]
MOST_STEPS = 1000  # of L-BFGS; separable classes without a penalty have no optimum to find
USUAL = LINEAR["fedema"]


class Layer(NamedTuple):
    """weight (C, d) and bias (C,): views of one row."""

    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Logits (n, C) of features (n, d)."""
        return features @ self.weight.T + self.bias


@torch.no_grad()
def linear_predict(
    train: Labelled,
    queries: Tensor,
    how: Protocol = USUAL,
    seed: int = 0,
    penalty: float = 0.0,
    solver: Solver = "protocol",
) -> Tensor:
    """Classes (n,) of features (n, d)."""
    layer = minimise(train, penalty) if solver == "lbfgs" else fit_linear(train, how, seed, penalty)
    return layer(queries.to(layer.weight.dtype)).argmax(1)


@torch.no_grad()
def fit_linear(train: Labelled, how: Protocol = USUAL, seed: int = 0, penalty: float = 0.0) -> Layer:
    """Trained as a paper does, on the mean cross-entropy + penalty/2 · ‖weight‖²; biases are not penalised."""
    features, labels = train
    (n, dim), classes, device = features.shape, int(labels.max()) + 1, features.device
    stream = generator(seed, "linear probe", device=device)
    row = torch.zeros(classes * (dim + 1), device=device)
    row.uniform_(-(dim**-0.5), dim**-0.5, generator=stream)
    grad = torch.zeros_like(row)
    layer, slope = _layer(row, classes), _layer(grad, classes)
    optimizer = _optimizer(how, row, _decay(row, classes, penalty))
    targets = F.one_hot(labels, classes).float()
    for epoch in range(how.epochs):
        optimizer.rate.fill_(how.lr * how.drop(epoch))
        order = torch.randperm(n, generator=stream, device=device)
        for index in order.split(how.batch):
            _descent(layer, features[index], targets[index], slope)
            optimizer.step(grad)
    return layer


@torch.no_grad()
def minimise(train: Labelled, penalty: float) -> Layer:
    """The minimum itself of the same loss over all images, by L-BFGS in double precision: no paper's, but exact."""
    features, classes = train.features.double(), int(train.labels.max()) + 1
    targets = F.one_hot(train.labels, classes).double()
    row = features.new_zeros(classes * (features.shape[1] + 1))
    layer, decay = _layer(row, classes), _decay(row, classes, penalty)
    row.grad = torch.zeros_like(row)
    slope = _layer(row.grad, classes)
    optimizer = torch.optim.LBFGS(
        [row], max_iter=MOST_STEPS, tolerance_grad=1e-7, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        assert row.grad is not None
        _descent(layer, features, targets, slope)
        row.grad.addcmul_(row, decay)
        return F.cross_entropy(layer(features), train.labels) + (decay * row.square()).sum() / 2

    optimizer.step(loss)
    return layer


def _layer(row: Tensor, classes: int) -> Layer:
    return Layer(row[:-classes].view(classes, -1), row[-classes:])


def _decay(row: Tensor, classes: int, penalty: float) -> Tensor:
    """The penalty on every weight, none on the biases."""
    decay = torch.full_like(row, penalty)
    _layer(decay, classes).bias.zero_()
    return decay


def _optimizer(how: Protocol, row: Tensor, decay: Tensor) -> Optimizer:
    return Adam(row, decay, decoupled=False) if how.optimizer == "adam" else SGD(row, decay, momentum=0.9)


def _descent(layer: Layer, x: Tensor, targets: Tensor, slope: Layer) -> None:
    """The gradient of the mean cross-entropy in closed form, into `slope`: no graph to build."""
    error = (torch.softmax(layer(x), 1) - targets) / len(x)
    torch.mm(error.T, x, out=slope.weight)
    torch.sum(error, 0, out=slope.bias)
