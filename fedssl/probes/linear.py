"""Linear evaluation: a softmax layer on frozen features; the last epoch counts, not the best.

There is no augmentation. protocol.py has the papers' settings. Departures: layers start alike for
all papers, uniform in ±1/√d, where MoCo's are normal with deviation 0.01.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.core.devices.precision import threads
from fedssl.core.seeds import generator
from fedssl.probes.features import Labelled
from fedssl.probes.protocol import LINEAR, Protocol
from fedssl.training.optimizers import SGD, Adam, Optimizer

Solver = Literal["protocol", "lbfgs"]

# Of L-BFGS: separable classes without a penalty have no optimum to converge to.
MAX_ITERATIONS = 1000
TYPICAL_EVALUATIONS = 100  # of the loss by L-BFGS: 30 to 300 on features of backbones
# Multiplications up to which one thread of a CPU fits a layer, in at most about 10 s. A step is so
# short that further threads mostly wait for each other: on a busy machine, two threads take 10 to
# 50 times as long as one.
MAX_WORK_OF_ONE_THREAD = 2e10
DEFAULT_PROTOCOL = LINEAR["fedema"]


class Layer(NamedTuple):
    """A linear layer: weight (C, d) and bias (C,), both views of one row."""

    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Return logits (n, C) of features (n, d)."""
        return features @ self.weight.T + self.bias


@torch.no_grad()
def linear_predict(
    train: Labelled,
    queries: Tensor,
    protocol: Protocol = DEFAULT_PROTOCOL,
    seed: int = 0,
    penalty: float = 0.0,
    solver: Solver = "protocol",
) -> Tensor:
    """Return the classes (n,) of features (n, d) by a layer trained on labelled features."""
    passes = TYPICAL_EVALUATIONS if solver == "lbfgs" else protocol.epochs
    classes = int(train.labels.max()) + 1
    with threads(thread_count(train.features.numel(), classes, passes)):
        if solver == "lbfgs":
            layer = minimise(train, penalty)
        else:
            layer = fit_linear(train, protocol, seed, penalty)
        return layer(queries.to(layer.weight.dtype)).argmax(1)


def thread_count(numbers: int, classes: int, passes: int) -> int:
    """Return the CPU threads that fit a layer in some passes over features.

    `numbers`: how many the features consist of, n · d.
    """
    if passes * numbers * classes <= MAX_WORK_OF_ONE_THREAD:
        return 1
    return torch.get_num_threads()


@torch.no_grad()
def fit_linear(
    train: Labelled, protocol: Protocol = DEFAULT_PROTOCOL, seed: int = 0, penalty: float = 0.0
) -> Layer:
    """Return a layer trained by a paper's protocol.

    The loss is the mean cross-entropy + penalty/2 · ‖weight‖²; biases are not penalised.
    """
    features, labels = train
    n, dim = features.shape
    classes = int(labels.max()) + 1
    device = features.device
    stream = generator(seed, "linear probe", device=device)
    row = torch.zeros(classes * (dim + 1), device=device)
    row.uniform_(-(dim**-0.5), dim**-0.5, generator=stream)
    row_grad = torch.zeros_like(row)
    layer = _as_layer(row, classes)
    grad = _as_layer(row_grad, classes)
    optimizer = _optimizer(protocol, row, _decay(row, classes, penalty))
    targets = F.one_hot(labels, classes).float()
    order = torch.arange(n, device=device)
    for epoch in range(protocol.epochs):
        optimizer.lr.fill_(protocol.lr * protocol.drop(epoch))
        if protocol.shuffled:
            order = torch.randperm(n, generator=stream, device=device)
        for index in order.split(protocol.batch):
            x = features[index]
            _write_gradient(layer(x), x, targets[index], grad)
            optimizer.step(row_grad)
    return layer


@torch.no_grad()
def minimise(train: Labelled, penalty: float, max_iterations: int = MAX_ITERATIONS) -> Layer:
    """Return the layer that minimises the loss of `fit_linear` over all images.

    By L-BFGS in double precision: exact, but not the protocol of any paper.
    """
    features = train.features.double()
    classes = int(train.labels.max()) + 1
    targets = F.one_hot(train.labels, classes).double()
    row = features.new_zeros(classes * (features.shape[1] + 1))
    row.grad = torch.zeros_like(row)
    layer = _as_layer(row, classes)
    grad = _as_layer(row.grad, classes)
    decay = _decay(row, classes, penalty)
    optimizer = torch.optim.LBFGS(
        [row],
        max_iter=max_iterations,
        tolerance_grad=1e-7,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        assert row.grad is not None
        logits = layer(features)
        _write_gradient(logits, features, targets, grad)
        row.grad.addcmul_(row, decay)
        return F.cross_entropy(logits, train.labels) + (decay * row.square()).sum() / 2

    optimizer.step(loss)
    return layer


def _as_layer(row: Tensor, classes: int) -> Layer:
    return Layer(row[:-classes].view(classes, -1), row[-classes:])


def _decay(row: Tensor, classes: int, penalty: float) -> Tensor:
    """Return the penalty of each number in the row: 0 for the biases."""
    decay = torch.full_like(row, penalty)
    _as_layer(decay, classes).bias.zero_()
    return decay


def _optimizer(protocol: Protocol, row: Tensor, decay: Tensor) -> Optimizer:
    if protocol.optimizer == "adam":
        return Adam(row, decay, decoupled=False)
    return SGD(row, decay, momentum=0.9)


def _write_gradient(logits: Tensor, x: Tensor, targets: Tensor, grad: Layer) -> None:
    """Write the gradient of the mean cross-entropy into `grad`, in closed form without a graph.

    `logits` are those of the features `x`.
    """
    error = (torch.softmax(logits, 1) - targets) / len(x)
    torch.mm(error.T, x, out=grad.weight)
    torch.sum(error, 0, out=grad.bias)
