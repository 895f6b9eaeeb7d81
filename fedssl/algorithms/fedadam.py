"""FedAdam: FedAvg with Adam on the server.

Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2 (its lines are in the
margin). The server's gradient, up to its sign, is Δ = mean of the clients' − w.
Departures: running statistics, and a target that is averaged in addition to the model, take the
mean. β₁, β₂ and τ are the paper's, v starts at τ² and nothing is corrected for its start, as in the
box; the paper tunes η for each task, 0.01 is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

import torch
from pydantic import Field

from fedssl.algorithm import ALGORITHMS, Averaging, Upload
from fedssl.algorithms._averaging import average
from fedssl.algorithms._network_choice import NetworkChoice
from fedssl.algorithms._server_step import apply_step, difference, parameters, site_models
from fedssl.core.state.tree import Tree, tensor
from fedssl.training.client import Client


@ALGORITHMS.register("fedadam")
class FedAdam(NetworkChoice):
    """FedAvg with Adam on the server: parameters that moved little so far move relatively more."""

    needs_server: ClassVar[bool] = True

    # the server's learning rate, the paper's η: about how far a parameter moves a round
    lr: float = Field(0.01, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)  # of the mean of Δ
    beta2: float = Field(0.99, ge=0, lt=1)  # of the mean of its square
    # parameters that move less than this count as if they moved as much
    tau: float = Field(1e-3, gt=0)

    def init(self, client: Client) -> Tree:
        models = self.initial_models(client.method)
        row = parameters(models["model"])
        first = torch.zeros_like(row)
        second = torch.full_like(row, self.tau**2)
        return {**models, "first": first, "second": second}

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return site_models(site)

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        self.start(client, message)
        client.train(self.objective, self.constants(client, message), self.draw)
        return self.upload(client), self.memory(client)

    @property
    def needs_only_means(self) -> bool:
        return True

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        averaged = average(site_models(site), uploads, mean)
        delta = difference(averaged, site)
        # line 9: m ← β₁m + (1 − β₁)Δ
        first = torch.lerp(delta, tensor(site, "first"), self.beta1)
        # line 12: v ← β₂v + (1 − β₂)Δ²
        second = torch.lerp(delta.square(), tensor(site, "second"), self.beta2)
        # line 13: w ← w + ηm/(√v + τ)
        step = self.lr * first / (second.sqrt() + self.tau)
        return {**apply_step(step, averaged, delta), "first": first, "second": second}
