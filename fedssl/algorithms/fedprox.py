"""FedProx: FedAvg, with a pull towards the global model while clients train.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020: the local loss + μ/2·‖w − w_global‖², over
parameters.
Departures: μ = 0.01, since no paper of this field gives one.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from fedssl.algorithm import ALGORITHMS
from fedssl.algorithms.fedavg import FedAvg
from fedssl.algorithms.pull import pull, reference
from fedssl.client import Client
from fedssl.method import Batch, Given, Method, Output
from fedssl.tree import Tree, model


@ALGORITHMS.register("fedprox")
class FedProx(FedAvg):
    mu: float = Field(0.01, ge=0)  # how strongly clients are pulled towards the model they were sent

    def given(self, client: Client, message: Tree) -> Given:
        return reference(client.method, model(message, "model").restricted(self.shared(client.method)))

    def objective(self, method: Method, batch: Batch, out: Output, given: Given) -> Tensor:
        loss = method.loss(out, given)
        return loss + self.mu / 2 * pull(method, given) if self.mu else loss
