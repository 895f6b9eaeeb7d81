"""The statistics of batches that running statistics of BatchNorm reveal.

After one step, a running mean is (1 − m)·old + m·batch mean, so a server that sees both knows the
mean of the batch in every channel of every layer, and its variance.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

MIN_SQUARE = 1e-12


class Moments(NamedTuple):
    """Mean and variance of each channel (c,)."""

    mean: Tensor
    variance: Tensor

    def detached(self) -> Moments:
        """Return the moments without their graph."""
        return Moments(self.mean.detach(), self.variance.detach())


Statistics = dict[str, Moments]  # by the name of the layer


class StatisticsRecorder:
    """Collect the moments of each BatchNorm layer's input, weighted as in its running statistics.

    The result is differentiable in the inputs.
    """

    def __init__(self, method: nn.Module, layers: Collection[str]) -> None:
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}
        self._weights: dict[str, float] = {}
        for name in layers:
            module = method.get_submodule(name)
            module.register_forward_pre_hook(self._hook(name))

    def _hook(self, name: str) -> Any:
        def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            assert isinstance(module, _BatchNorm)
            momentum = float(module.momentum or 0.0)
            if not module.training or not momentum:
                return
            for group in inputs[0].chunk(int(getattr(module, "groups", 1))):
                self._add(name, group, momentum)

        return record

    def _add(self, name: str, group: Tensor, momentum: float) -> None:
        axes = [0, *range(2, group.ndim)]
        mean = momentum * group.mean(axes)
        variance = momentum * group.var(axes)
        if name in self._sums:
            old_mean, old_variance = self._sums[name]
            mean = mean + (1 - momentum) * old_mean
            variance = variance + (1 - momentum) * old_variance
        self._sums[name] = (mean, variance)
        self._weights[name] = self._weights.get(name, 0.0) * (1 - momentum) + momentum

    def take(self) -> Statistics:
        """Return the weighted means of what was collected, and start again."""
        statistics = {}
        for name, (mean, variance) in self._sums.items():
            weight = self._weights[name]
            statistics[name] = Moments(mean / weight, variance / weight)
        self._sums.clear()
        self._weights.clear()
        return statistics


def distance(statistics: Statistics, observed: Statistics) -> Tensor:
    """Return the mean over layers of the squared relative distance of means and deviations, 0-d.

    Distances are relative to the length of the vector over channels, so that channels that hardly
    vary have little weight.
    """
    terms = []
    for name, moments in observed.items():
        terms.append(_relative(statistics[name].mean, moments.mean))
        terms.append(_relative(_std(statistics[name]), _std(moments)))
    return torch.stack(terms).mean()


def _relative(values: Tensor, observed: Tensor) -> Tensor:
    return (values - observed).square().sum() / observed.square().sum().clamp_min(MIN_SQUARE)


def _std(moments: Moments) -> Tensor:
    return moments.variance.clamp_min(MIN_SQUARE).sqrt()


def from_running(before: Moments, after: Moments, batches: int, momentum: float) -> Moments | None:
    """Return the mean over batches of their moments, from running statistics before and after.

    None if no batch was counted. Recent batches have more weight, and running statistics do not
    show which.
    """
    kept = (1 - momentum) ** batches
    if kept == 1:
        return None
    mean = (after.mean - kept * before.mean) / (1 - kept)
    variance = (after.variance - kept * before.variance) / (1 - kept)
    return Moments(mean, variance.clamp_min(0))
