"""FedEMA: clients mix local and global weights by their divergence.

Zhuang, Wen & Zhang, "Divergence-aware federated self-supervised learning", ICLR 2022, Algorithm 1
(its lines are in the comments): a client starts from μ·W_k + (1 − μ)·W_g, its predictor with the
same μ, where μ = min(λ_k·divergence, 1); its target stays local. λ_k is set once, in the first
round that samples the client (the autoscaler), or is one constant for all clients.

Departures: Algorithm 1 measures the divergence as ‖W_g − W_k‖ over backbone and projector
(`global`). With it, μ grows until clients ignore the global model: a client that keeps its own
weights is farther from the next global model, and soon μ is 1. The authors' code measures how far
the last local training moved the client, as the mean of the layers' norms (`drift`), which
decreases with the learning rate as in the paper's Figure 6; this is the default. With `drift`, a
client computes λ_k = τ/drift after its first training; with `global`, the server computes λ_k =
τ/‖W_g − W_k‖ after the merge of that round, and for this holds the uploads of clients without λ
until the merge is done. A client that did not take part in the previous round starts from the
global model, target included. Running statistics are mixed as weights are.
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
from fedssl.core.state.tree import Tree, Value, model, number
from fedssl.method import Method
from fedssl.training.client import Client

# A site with this key sets λ in a client's first round. Sites written by earlier versions lack it:
# there, a client sets λ when it first takes part in two consecutive rounds, and a resumed run keeps
# that rule.
LAM_FROM_FIRST_ROUND = "lam_from_first_round"


@ALGORITHMS.register("fedema")
class FedEMA(Algorithm):
    """Clients mix local and global weights by their divergence."""

    # "drift": how far the last local training moved the client; "global": its distance to the
    # global model
    divergence: Literal["drift", "global"] = "drift"
    tau: float = Field(0.7, ge=0, le=1)  # the first μ, where λ is set by it
    # the paper's λ, the same for all; None: each client's own, from τ
    lam: float | None = Field(None, ge=0)
    encoder_mu: float | None = Field(None, ge=0, le=1)  # in place of μ for all but the predictor
    # in place of μ for the predictor; 0: it is the global one
    predictor_mu: float | None = Field(None, ge=0, le=1)

    @property
    def needs_only_means(self) -> bool:
        return self.divergence == "drift" or self.lam is not None

    def upload_schema(self, method: Method) -> Mapping[str, Spec]:
        return {"model": online_layout(method)}

    def init(self, client: Client) -> Tree:
        return {"model": online_model(client.method), LAM_FROM_FIRST_ROUND: True}  # line 2

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        """Return the model and, if the server has computed it, the client's own λ."""
        message = {"model": site["model"]}
        if LAM_FROM_FIRST_ROUND in site:
            message[LAM_FROM_FIRST_ROUND] = site[LAM_FROM_FIRST_ROUND]
        if _lam_key(client_id) in site:
            message["lam"] = site[_lam_key(client_id)]
        return message

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        lam = self._start(client, message)  # lines 13–18
        state = client.method.state
        start = state.pick(("backbone",))
        client.train(self.objective, self.constants(client, message), self.draw)  # lines 19–22
        drift = layer_mean(start, state, client.method.settings.adapters).item()
        client.notes["drift"] = drift
        lam = self._updated_lam(lam, drift, client, message)
        return {"model": online_model(client.method)}, _memory(client, drift, lam)  # line 23

    def _start(self, client: Client, message: Tree) -> float:
        """Load the model that training starts from; return the λ_k used, or 0 if none was used."""
        received = model(message, "model")
        if client.memory.get("round") != client.round - 1:  # line 13
            load_model(client, received, *_private_parts(client))  # line 14
            return 0.0
        local = model(client.memory, "online")
        divergence = self._divergence(received, client.memory)
        lam = self._lam(divergence, client.memory, message)
        mu = min(lam * divergence, 1.0)  # line 16
        client.notes.update(divergence=divergence, lam=lam, mu=mu)
        mixed = self._mix(received, local, mu)
        load_model(client, mixed, *stored_models(client.memory, "kept"))
        return lam

    def _divergence(self, received: State, memory: Tree) -> float:
        if self.divergence == "global":
            return encoder_norm(received, model(memory, "online")).item()
        return number(memory, "drift")

    def _lam(self, divergence: float, memory: Tree, message: Tree) -> float:
        """Return λ_k; 0 before it is set, which starts the client from the global model."""
        if self.lam is not None:
            return self.lam
        if LAM_FROM_FIRST_ROUND not in message:
            return number(memory, "lam", self._scale(divergence))
        if self.divergence == "global":
            return number(message, "lam", 0.0)
        return number(memory, "lam", 0.0)

    def _scale(self, divergence: float) -> float:
        """Return the λ with which this divergence gives μ = τ; 0 if the divergence is 0."""
        if not divergence:
            return 0.0
        return self.tau / divergence

    def _mix(self, received: State, local: State, mu: float) -> State:
        """Return μ·W_k + (1 − μ)·W_g."""
        encoder = [part for part in received.layout.parts if part != "predictor"]
        encoder_mu = mu if self.encoder_mu is None else self.encoder_mu
        predictor_mu = mu if self.predictor_mu is None else self.predictor_mu
        mixed = received
        for parts, share in ((encoder, encoder_mu), (["predictor"], predictor_mu)):
            mixture = received.pick(parts).lerp(local.pick(parts), share)  # lines 17 and 18
            mixed = mixed.overwritten(mixture)
        return mixed

    def _updated_lam(self, used: float, drift: float, client: Client, message: Tree) -> float:
        """Return the λ that a client stores: set after its first training, and never changed."""
        stored = number(client.memory, "lam", 0.0)
        if LAM_FROM_FIRST_ROUND not in message:
            return used or stored
        if self.lam is not None or self.divergence == "global":
            return 0.0
        return stored or self._scale(drift)

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        # Uploads of clients without λ, held until the mean is known: in round 1, every upload.
        unscaled: list[Upload] = []
        from_first_round = self.divergence == "global" and LAM_FROM_FIRST_ROUND in site
        server_sets_lam = from_first_round and self.lam is None

        def hold_if_unscaled(upload: Upload) -> Upload:
            if server_sets_lam and _lam_key(upload.client) not in site:
                unscaled.append(upload)
            return upload

        models = {"model": site["model"]}
        merged = average(models, map(hold_if_unscaled, uploads), mean)  # lines 7 and 8
        return {**site, **merged, **self._lams(model(merged, "model"), unscaled)}

    def _lams(self, merged: State, uploads: Iterable[Upload]) -> Tree:
        """Return λ_k = τ/‖W_g − W_k‖ for each upload (lines 9 and 10).

        A client that is alone does not diverge from the mean; a later round sets its λ.
        """
        lams = {}
        for upload in uploads:
            lam = self._scale(encoder_norm(merged, model(upload.tree, "model")).item())
            if lam:
                lams[_lam_key(upload.client)] = lam
        return lams


def _lam_key(client_id: str) -> str:
    return f"lam/{client_id}"


def _memory(client: Client, drift: float, lam: float) -> Tree:
    """Return a client's memory: its model, its drift and, once it is set, its λ."""
    memory: dict[str, Value] = {
        **keep(client, client.method.persistent_parts),
        "online": online_model(client.method),
        "drift": drift,
        "round": client.round,
    }
    if lam:
        memory["lam"] = lam
    return memory


def _private_parts(client: Client) -> list[State]:
    """Return the parts that a client keeps after missing a round, such as a queue."""
    parts = []
    for kept in stored_models(client.memory, "kept"):
        private = kept.layout.pick(client.method.private)
        if private.entries:
            parts.append(kept.restricted(private))
    return parts
