"""The optimizer of the settings, for a method's row of parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from fedssl.core.state.layout import PARAMETERS
from fedssl.method import Method
from fedssl.training.optimizers import SGD, Adam, FusedSGD, Optimizer
from fedssl.training.settings import TrainSettings


def make_optimizer(
    settings: TrainSettings, method: Method, row: Tensor, fused: bool = False
) -> Optimizer:
    """Return the optimizer of the settings for a row of parameters."""
    decay: float | Tensor = settings.weight_decay
    if decay and not settings.decay_norms:
        decay = _decay_per_element(settings.weight_decay, method).to(row.device)
    if settings.optimizer != "sgd":
        return Adam(row, decay, decoupled=settings.optimizer == "adamw")
    if fused and not isinstance(decay, Tensor):
        return FusedSGD(row, decay, settings.momentum)
    return SGD(row, decay, settings.momentum)


def _decay_per_element(weight_decay: float, method: Method) -> Tensor:
    """Return the decay of each trained parameter (n,): 0 for biases and normalisation layers."""
    decays = []
    for entry in method.state.layout.pick(method.trained, PARAMETERS).entries:
        decay = 0.0
        if entry.role == "weight" and len(entry.shape) > 1:
            decay = weight_decay
        decays.append(torch.full((entry.size,), decay))
    return torch.cat(decays)
