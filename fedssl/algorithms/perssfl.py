"""Per-SSFL: in addition to the averaged model, every client trains a personal one near it.

He et al., "SSFL: Tackling label deficiency in federated learning via personalized
self-supervision", 2021, after Li et al., "Ditto: Fair and robust federated learning through
personalization", ICML 2021, Algorithm 1: each round a client trains a copy of the global model w,
which is averaged, and its personal model v_k with the same loss + λ/2·‖v_k − w‖², which stays.
Departures: λ = 0.1, since no paper of this field gives one. w is the model received in this round.
v_k trains as long as the copy does, begins as the first model received, and has a separate target
and queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedssl.algorithm import ALGORITHMS, Algorithm, Averaging, Spec, Upload
from fedssl.algorithms._averaging import (
    average,
    keep,
    load_model,
    online_layout,
    online_model,
    stored_models,
)
from fedssl.algorithms._proximal import pull, trained_parameters
from fedssl.core.errors import ClientError
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.method import Batch, Constants, Method, Output
from fedssl.training.client import Client


@ALGORITHMS.register("perssfl")
class PerSSFL(Algorithm):
    """In addition to the averaged model, every client trains a personal one near it."""

    personalises: ClassVar[bool] = True

    # how strongly a client's own model is pulled towards the global one
    lam: float = Field(0.1, ge=0)

    @property
    def needs_only_means(self) -> bool:
        return True

    def upload_schema(self, method: Method) -> Mapping[str, Spec]:
        return {"model": online_layout(method)}

    def init(self, client: Client) -> Tree:
        return {"model": online_model(client.method)}

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return site

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        received = model(message, "model")
        load_model(client, received, *stored_models(client.memory, "kept"))
        client.train(self.objective, self.constants(client, message), self.draw)
        upload = {"model": online_model(client.method)}
        memory = keep(client, client.method.persistent_parts)
        return upload, {**memory, **self._train_own(client, received)}

    def _train_own(self, client: Client, received: State) -> Tree:
        """Train v_k on loss + λ/2·‖v_k − w‖²; return the memory of it.

        If that fails, v_k is lost and restarts from the next model received; the upload does not
        depend on it.
        """
        method = client.method
        start = received
        if "own" in client.memory:
            start = model(client.memory, "own")
        load_model(client, start, *stored_models(client.memory, "own_kept"))
        try:
            metrics = client.train(self.pulled, trained_parameters(method, received), self.draw)
        except ClientError:
            client.notes["own_failed"] = 1.0
            return {}
        client.notes["own_loss"] = metrics.loss
        kept = keep(client, method.persistent_parts)
        return {"own": online_model(method), **{f"own_{key}": kept[key] for key in kept}}

    def pulled(self, method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        """Return the loss of the personal model: the method's + λ/2·‖v_k − w‖²."""
        loss = method.loss(out, constants)
        if self.lam:
            loss = loss + self.lam / 2 * pull(method, constants)
        return loss

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        return average(site, uploads, mean)

    def personal(self, message: Tree, memory: Tree) -> State | None:
        if "own" not in memory:
            return None
        return model(memory, "own")
