"""FedEMA: a client takes over the global model the less, the farther it is from it.

Zhuang, Wen & Zhang, "Divergence-aware federated self-supervised learning", ICLR 2022, Algorithm 1: a client starts from
μ·W_k + (1 − μ)·W_g, its predictor with the same μ, where μ = min(λ_k·divergence, 1); its target stays local. λ_k is set
once, so that the first μ is τ (the autoscaler), or is the same for all.
Departures: the box has the divergence ‖W_g − W_k‖ over backbone and projector (`global`). With it clients run away: one
that keeps its own weights is the farther from the next global model, and soon μ is 1. The authors' code has the way a
client went in its last training, as the mean of the layers' norms (`drift`), which falls with the learning rate as the
paper's Figure 6 shows; so that is the default. A client that did not take part in the round before, or has no λ yet,
starts from the global model, its target included. Running statistics are mixed as weights are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from fedssl.algorithm import ALGORITHMS
from fedssl.algorithms.averaged import Averaged
from fedssl.algorithms.divergence import encoder_norm, layer_mean
from fedssl.client import Client
from fedssl.tree import State, Tree, model, number


@ALGORITHMS.register("fedema")
class FedEMA(Averaged):
    divergence: Literal["drift", "global"] = "drift"  # of its last training, or from the global model
    tau: float = Field(0.7, ge=0, le=1)  # the first μ, where λ is set by it
    lam: float | None = Field(None, ge=0)  # the paper's λ, the same for all; None: each client's own, from τ
    encoder_mu: float | None = Field(None, ge=0, le=1)  # in place of μ for all but the predictor
    predictor_mu: float | None = Field(None, ge=0, le=1)  # in place of μ for the predictor; 0: it is the global one

    def begin(self, client: Client, message: Tree) -> None:
        if client.memory.get("round") == client.round - 1:
            super().begin(client, {"model": self._mixed(client, model(message, "model"))})
        else:
            super().begin(replace(client, memory=_private(client)), message)

    def _mixed(self, client: Client, sent: State) -> State:
        """μ·W_k + (1 − μ)·W_g."""
        own, memory = model(client.memory, "online"), client.memory
        diverged = encoder_norm(sent, own).item() if self.divergence == "global" else number(memory, "drift")
        first = self.tau / diverged if diverged else 0.0
        lam = self.lam if self.lam is not None else number(memory, "lam", first)
        mu = min(lam * diverged, 1.0)
        client.notes.update(divergence=diverged, lam=lam, mu=mu)
        encoder = [part for part in client.method.online if part != "predictor"]
        mixed = sent
        for parts, fixed in ((encoder, self.encoder_mu), (["predictor"], self.predictor_mu)):
            mixed = mixed.overwritten(sent.pick(parts).lerp(own.pick(parts), mu if fixed is None else fixed))
        return mixed

    def client(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        self.begin(client, message)
        state = client.method.state
        start = state.pick(("backbone",))
        client.train(self.objective, self.given(client, message), self.draw)
        client.notes["drift"] = drift = layer_mean(start, state).item()
        lam = client.notes.get("lam") or client.memory.get("lam")  # one that stands alone has none yet
        memory = {"online": state.pick(client.method.online), "drift": drift, "round": client.round}
        known = {"lam": lam} if lam else {}
        return self.upload(client, message), {**self.remember(client, message), **memory, **known}


def _private(client: Client) -> Tree:
    """What a client that was away goes on with: all but the model, such as a queue."""
    kept = client.memory.get("kept")
    private = kept.layout.pick(client.method.private) if isinstance(kept, State) else None
    return {"kept": kept.restricted(private)} if isinstance(kept, State) and private and private.entries else {}
