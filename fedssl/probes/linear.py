"""Linear evaluation: a softmax layer on frozen features, no augmentation; the last epoch counts, never the best.

Settings as FedEMA's: Adam, learning rate 0.003, 200 epochs, batches of 512.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.optim import Adam
from fedssl.probes.features import Labelled
from fedssl.probes.knn import accuracy
from fedssl.seeds import generator


def linear(
    train: Labelled, test: Labelled, epochs: int = 200, lr: float = 3e-3, batch: int = 512, seed: int = 0
) -> float:
    """Top-1 accuracy in percent."""
    weight, bias = fit_linear(train, epochs, lr, batch, seed)
    return accuracy((test.features @ weight.T + bias).argmax(1), test.labels)


@torch.no_grad()
def fit_linear(train: Labelled, epochs: int, lr: float, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """weight (C, d), bias (C,), by the closed-form gradient of the cross-entropy: no graph to build."""
    features, labels = train
    (n, dim), classes, device = features.shape, int(labels.max()) + 1, features.device
    stream = generator(seed, "linear probe", device=device)
    row = torch.zeros(classes * (dim + 1), device=device)
    row.uniform_(-(dim**-0.5), dim**-0.5, generator=stream)
    grad = torch.zeros_like(row)
    (weight, bias), (to_weight, to_bias) = (
        (r[: classes * dim].view(classes, dim), r[classes * dim :]) for r in (row, grad)
    )
    optimizer = Adam(row, decay=0.0, decoupled=False)
    optimizer.rate.fill_(lr)
    targets = F.one_hot(labels, classes).float()
    for _ in range(epochs):
        order = torch.randperm(n, generator=stream, device=device)
        for index in order.split(batch):
            x = features[index]
            error = (torch.softmax(x @ weight.T + bias, 1) - targets[index]) / len(index)
            torch.mm(error.T, x, out=to_weight)
            torch.sum(error, 0, out=to_bias)
            optimizer.step(grad)
    return weight, bias
