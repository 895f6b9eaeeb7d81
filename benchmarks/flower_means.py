"""Flower's own aggregation functions as means of fedssl, to compare them on the same uploads.

Needs the package flwr. A model is two arrays, its floats and its counters, so that counters take
part in Krum's distances, as they do in Flower, which aggregates all of a state dict.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import torch

from fedssl.algorithm import Averaging
from fedssl.core.state.state import State
from fedssl.engine.means.mean_settings import MEANS, MeanSettings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Arrays = list[npt.NDArray[np.generic]]
    Results = list[tuple[Arrays, int]]


class FlowerMean(MeanSettings):
    """A mean that calls one of Flower's functions."""

    def start(self) -> Averaging:
        """Return the mean without models."""
        return Collected(self)

    @abstractmethod
    def aggregate(self, results: Results) -> Arrays:
        """Return the aggregated arrays."""


class Collected:
    """Collects models and passes them to Flower."""

    def __init__(self, mean: FlowerMean) -> None:
        self._mean = mean
        self._results: Results = []
        self._first: State | None = None

    def add(self, state: State, weight: float) -> None:
        """Include a model; the weight is its number of images."""
        self._first = self._first or state
        self._results.append(([state.floats.numpy(), state.counts.numpy()], int(weight)))

    def result(self) -> State:
        """Return the aggregated model."""
        assert self._first is not None
        floats, counts = self._mean.aggregate(self._results)
        return State(
            self._first.layout,
            torch.tensor(floats, dtype=torch.float32),
            torch.tensor(counts).long(),
        )


@MEANS.register("flower-fedavg")
class FlowerFedAvg(FlowerMean):
    """FedAvg of Flower."""

    def aggregate(self, results: Results) -> Arrays:
        """Return the mean weighted by the numbers of images."""
        from flwr.server.strategy.aggregate import aggregate

        arrays: Arrays = aggregate(results)
        return arrays


@MEANS.register("flower-trimmed")
class FlowerTrimmed(FlowerMean):
    """FedTrimmedAvg of Flower with its default, beta = 0.2."""

    def aggregate(self, results: Results) -> Arrays:
        """Return the trimmed mean."""
        from flwr.server.strategy.aggregate import aggregate_trimmed_avg

        arrays: Arrays = aggregate_trimmed_avg(results, proportiontocut=0.2)
        return arrays


@MEANS.register("flower-krum")
class FlowerKrum(FlowerMean):
    """Krum of Flower with one malicious client."""

    def aggregate(self, results: Results) -> Arrays:
        """Return the model with the smallest score."""
        from flwr.server.strategy.aggregate import aggregate_krum

        arrays: Arrays = aggregate_krum(results, num_malicious=1, to_keep=0)
        return arrays
