"""FedAvgM: FedAvg with momentum on the server.

Hsu, Qi & Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", 2019. The server's gradient, up to its sign, is Δ = mean of the clients' − w.
Departures: running statistics, and a target that is averaged in addition to the model, take the
mean. The defaults β = 0.9 and server learning rate 1 are among the values tried in the paper.
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


@ALGORITHMS.register("fedavgm")
class FedAvgM(NetworkChoice):
    """FedAvg with momentum on the server."""

    needs_server: ClassVar[bool] = True

    lr: float = Field(1.0, gt=0)  # the server's learning rate
    momentum: float = Field(0.9, ge=0, lt=1)  # the paper's β; 0, with lr = 1: FedAvg

    def init(self, client: Client) -> Tree:
        models = self.initial_models(client.method)
        return {**models, "velocity": torch.zeros_like(parameters(models["model"]))}

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
        velocity = self.momentum * tensor(site, "velocity") + delta  # v ← βv + Δ
        moved = apply_step(self.lr * velocity, averaged, delta)  # w ← w + ηv
        return {**moved, "velocity": velocity}
