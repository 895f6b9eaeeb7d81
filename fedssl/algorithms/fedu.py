"""FedU: clients whose training diverged keep their own predictor.

Zhuang et al., "Collaborative unsupervised visual representation learning from decentralized data",
ICCV 2021, Algorithm 1 (its lines are in the margin): online backbone and projector ← global; the
target stays local; the predictor ← global if the divergence of the client's last training is below
μ, otherwise it stays local.
Departures: the paper's algorithm box uses the squared L2 norm ‖θ − φ‖² (`squared-norm`), over
backbone and projector; the authors' code uses the mean of the layers' norms. Their μ = 0.4
(CIFAR-100: 0.6) is meaningful only on that scale, so it is the default. In a client's first round
its target and predictor start from the global model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from pydantic import Field

from fedssl.algorithm import ALGORITHMS, Algorithm, Averaging, Spec, Upload
from fedssl.algorithms._averaging import (
    average,
    keep,
    load_model,
    online_layout,
    online_model,
    stored_models,
)
from fedssl.algorithms._divergence import encoder_norm, layer_mean
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model, number
from fedssl.method import Method
from fedssl.training.client import Client


@ALGORITHMS.register("fedu")
class FedU(Algorithm):
    """Clients whose training diverged keep their own predictor."""

    # inf: the predictor is always the global one, 0: never
    mu: float = Field(0.4, ge=0, allow_inf_nan=True)
    # as the code has it, or the paper
    divergence: Literal["layer-mean", "squared-norm"] = "layer-mean"

    @property
    def requires(self) -> frozenset[str]:
        return frozenset({"predictor"})

    @property
    def needs_only_means(self) -> bool:
        return True

    def upload_schema(self, method: Method) -> Mapping[str, Spec]:
        return {"model": online_layout(method)}

    def init(self, client: Client) -> Tree:
        return {"model": online_model(client.method)}  # line 2

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return site

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        received = model(message, "model")
        load_model(client, received, *stored_models(client.memory, "kept"))  # lines 15 and 18
        self._restore_predictor(client)  # line 17
        client.train(self.objective, self.constants(client, message), self.draw)  # lines 20–27
        divergence = self._measure(received, client.method)
        client.notes["divergence"] = divergence
        return {"model": online_model(client.method)}, self._memory(client, divergence)  # line 28

    def _restore_predictor(self, client: Client) -> None:
        """Load the client's own predictor if its last training diverged by μ or more."""
        diverged = False
        if "divergence" in client.memory:
            diverged = number(client.memory, "divergence") >= self.mu
        if diverged:
            client.method.state.load(model(client.memory, "predictor"))
        client.notes["own_predictor"] = float(diverged)

    def _measure(self, received: State, trained: Method) -> float:
        """Return the divergence of this round's training, ‖θ − φ‖² or the layers' mean."""
        if self.divergence == "layer-mean":
            return layer_mean(received, trained.state, trained.settings.adapters).item()
        return encoder_norm(received, trained.state).square().item()

    def _memory(self, client: Client, divergence: float) -> Tree:
        kept = keep(client, client.method.persistent_parts)
        predictor = client.method.state.pick(("predictor",))
        return {**kept, "predictor": predictor, "divergence": divergence}

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        return average(site, uploads, mean)  # lines 9 and 10
