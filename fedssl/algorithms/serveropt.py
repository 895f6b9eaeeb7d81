"""FedAvgM and FedAdam: FedAvg whose server takes the mean for a direction, and follows it with an optimizer of its own.

Hsu, Qi & Brown, "Measuring the effects of non-identical data distribution for federated visual classification", 2019
(FedAvgM). Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2 (FedAdam). What is optimized are the
parameters w of the global model; the gradient, up to its sign, is Δ = mean of the clients' − w.
Departures: running statistics, and a target that is averaged beside the model, take the mean. FedAvgM: β = 0.9 and a
server's rate of 1, of the values the paper has tried. FedAdam: β₁, β₂ and τ are the paper's, v starts at τ² and nothing
is corrected for its start, as in the box; the paper tunes η for each task, 0.01 is ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedssl.algorithm import ALGORITHMS, Averaging, Upload
from fedssl.algorithms.fedavg import FedAvg
from fedssl.client import Client
from fedssl.layout import PARAMETERS
from fedssl.tree import State, Tree, model, tensor

SENT = ("model", "target")


class ServerOptimized(FedAvg, ABC):
    """The optimizer's state lies beside the model at the site, one number for each parameter, and is not sent."""

    needs_server: ClassVar[bool] = True

    @abstractmethod
    def start(self, row: Tensor) -> Tree:
        """The optimizer's first state, for a row of parameters (n,)."""

    @abstractmethod
    def step(self, delta: Tensor, site: Tree) -> tuple[Tensor, Tree]:
        """Where to go from the parameters, given Δ (n,), and the optimizer's next state."""

    def init(self, home: Client) -> Tree:
        site = super().init(home)
        return {**site, **self.start(parameters(model(site, "model")))}

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return {key: site[key] for key in SENT if key in site}

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        merged = super().merge({key: site[key] for key in SENT if key in site}, uploads, mean)
        moved = model(merged, "model").clone()  # a mean may be somebody's upload
        row = parameters(moved)
        delta = row - parameters(model(site, "model"))
        move, state = self.step(delta, site)
        row += move - delta  # w + move, by way of the mean: exactly the mean if the move is Δ
        return {**merged, "model": moved, **state}


@ALGORITHMS.register("fedavgm")
class FedAvgM(ServerOptimized):
    """FedAvg with momentum on the server."""

    lr: float = Field(1.0, gt=0)  # the server's learning rate
    momentum: float = Field(0.9, ge=0, lt=1)  # the paper's β; 0, with lr = 1: FedAvg

    def start(self, row: Tensor) -> Tree:
        return {"velocity": torch.zeros_like(row)}

    def step(self, delta: Tensor, site: Tree) -> tuple[Tensor, Tree]:
        velocity = self.momentum * tensor(site, "velocity") + delta  # v ← βv + Δ
        return self.lr * velocity, {"velocity": velocity}


@ALGORITHMS.register("fedadam")
class FedAdam(ServerOptimized):
    """FedAvg with Adam on the server: parameters that moved little so far move relatively more."""

    lr: float = Field(0.01, gt=0)  # the server's learning rate, the paper's η: about how far a parameter moves a round
    beta1: float = Field(0.9, ge=0, lt=1)  # of the mean of Δ
    beta2: float = Field(0.99, ge=0, lt=1)  # of the mean of its square
    tau: float = Field(1e-3, gt=0)  # parameters that move less than this count as if they moved as much

    def start(self, row: Tensor) -> Tree:
        return {"first": torch.zeros_like(row), "second": torch.full_like(row, self.tau**2)}

    def step(self, delta: Tensor, site: Tree) -> tuple[Tensor, Tree]:
        first = torch.lerp(delta, tensor(site, "first"), self.beta1)  # line 9: m ← β₁m + (1 − β₁)Δ
        second = torch.lerp(delta.square(), tensor(site, "second"), self.beta2)  # line 12: v ← β₂v + (1 − β₂)Δ²
        return self.lr * first / (second.sqrt() + self.tau), {"first": first, "second": second}  # line 13


def parameters(state: State) -> Tensor:
    """A model's parameters (n,): a live slice of its row, where they come first."""
    (row,) = state.stretches(PARAMETERS)
    return row
