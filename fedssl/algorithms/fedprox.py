"""FedProx: FedAvg, with a pull towards the global model while clients train.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020, Algorithm 2: the local
loss + μ/2·‖w − w_global‖², over parameters.
Departures: μ = 0.01, since no paper of this field gives one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pydantic import Field
from torch import Tensor

from fedssl.algorithm import ALGORITHMS, Averaging, Upload
from fedssl.algorithms._averaging import average
from fedssl.algorithms._network_choice import NetworkChoice
from fedssl.algorithms._proximal import pull, trained_parameters
from fedssl.core.state.tree import Tree, model
from fedssl.method import Batch, Constants, Method, Output
from fedssl.training.client import Client


@ALGORITHMS.register("fedprox")
class FedProx(NetworkChoice):
    """FedAvg, with a pull towards the global model while clients train."""

    # how strongly clients are pulled towards the model they were sent
    mu: float = Field(0.01, ge=0)

    def init(self, client: Client) -> Tree:
        return self.initial_models(client.method)

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return site

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        self.start(client, message)
        client.train(self.objective, self.constants(client, message), self.draw)
        return self.upload(client), self.memory(client)

    def constants(self, client: Client, message: Tree) -> Constants:
        """Return the parameters received, w_global."""
        received = model(message, "model").restricted(self.shared(client.method))
        return trained_parameters(client.method, received)

    def objective(self, method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        loss = method.loss(out, constants)
        if self.mu:
            loss = loss + self.mu / 2 * pull(method, constants)
        return loss

    @property
    def needs_only_means(self) -> bool:
        return True

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        return average(site, uploads, mean)
