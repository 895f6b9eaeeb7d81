"""Per-SSFL: beside the averaged model, every client trains one of its own that is held near it.

He et al., "SSFL: Tackling label deficiency in federated learning via personalized self-supervision", 2021, after Li et
al., "Ditto: Fair and robust federated learning through personalization", ICML 2021, Algorithm 1: each round a client
trains a copy of the global model w, which is averaged, and its personal model v_k with the same loss +
λ/2·‖v_k − w‖², which stays.
Departures: λ = 0.1, since no paper of this field gives one. w is the model received in this round. v_k trains as long
as the copy does, begins as the first model received, and has a target and a queue of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedssl.algorithm import ALGORITHMS
from fedssl.algorithms.averaged import Averaged
from fedssl.algorithms.pull import pull, reference
from fedssl.client import Client
from fedssl.errors import ClientError
from fedssl.method import Batch, Given, Method, Output
from fedssl.tree import State, Tree, model


@ALGORITHMS.register("perssfl")
class PerSSFL(Averaged):
    personalises: ClassVar[bool] = True
    lam: float = Field(0.1, ge=0)  # how strongly a client's own model is pulled towards the global one

    def client(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        upload, copy = super().client(client, message)
        try:
            own = self._train_own(client, model(message, "model"))
        except ClientError:  # v_k is lost, and begins anew as the next model received; what is sent has no part in it
            own, client.notes["own_failed"] = {}, 1.0
        return upload, {**copy, **own}

    def _train_own(self, client: Client, sent: State) -> Tree:
        """v_k ← training on loss + λ/2·‖v_k − w‖²; what is to be remembered of it."""
        method, memory = client.method, client.memory
        kept = {"kept": memory["own_kept"]} if "own_kept" in memory else {}
        own = {"model": memory.get("own", sent)}
        self.begin(replace(client, memory=kept), own)
        trained = client.train(self.pulled, reference(method, sent), self.draw)
        client.notes["own_loss"] = trained.loss
        return {"own": method.state.pick(method.online)} | {
            f"own_{key}": value for key, value in self.remember(client, own).items()
        }

    def pulled(self, method: Method, batch: Batch, out: Output, given: Given) -> Tensor:
        loss = method.loss(out, given)
        return loss + self.lam / 2 * pull(method, given) if self.lam else loss

    def personal(self, message: Tree, memory: Tree) -> State | None:
        return model(memory, "own") if "own" in memory else None
