"""FedU: predictors are shared only by clients whose training did not lead them far away.

Zhuang et al., "Collaborative unsupervised visual representation learning from decentralized data", ICCV 2021,
Algorithm 1: online backbone and projector ← global; the target stays local; the predictor ← global if the divergence
of the client's last training is below μ, else it stays local.
Departures: the box has the squared L2 norm ‖θ − φ‖² (`squared-norm`), over backbone and projector; the authors' code
the mean of the layers' norms, the only scale on which their μ = 0.4 (CIFAR-100: 0.6) means anything, and so the
default. In a client's first round its target and predictor start from the global model.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedssl.algorithm import ALGORITHMS
from fedssl.algorithms.averaged import Averaged
from fedssl.algorithms.divergence import encoder_norm, layer_mean
from fedssl.client import Client
from fedssl.tree import State, Tree, model, number


@ALGORITHMS.register("fedu")
class FedU(Averaged):
    mu: float = Field(0.4, ge=0, allow_inf_nan=True)  # inf: the predictor is always the global one, 0: never
    divergence: Literal["layer-mean", "squared-norm"] = "layer-mean"  # as the code has it, or the paper

    @property
    def requires(self) -> frozenset[str]:
        return frozenset({"predictor"})

    def begin(self, client: Client, message: Tree) -> None:
        super().begin(client, message)
        own = "divergence" in client.memory and number(client.memory, "divergence") >= self.mu
        if own:
            client.method.state.load(model(client.memory, "predictor"))
        client.notes["own_predictor"] = float(own)

    def remember(self, client: Client, message: Tree) -> Tree:
        state, sent = client.method.state, model(message, "model")
        client.notes["divergence"] = diverged = self._measure(state, sent).item()
        return {**super().remember(client, message), "predictor": state.pick(("predictor",)), "divergence": diverged}

    def _measure(self, trained: State, sent: State) -> Tensor:
        return layer_mean(sent, trained) if self.divergence == "layer-mean" else encoder_norm(sent, trained).square()
