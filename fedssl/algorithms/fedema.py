"""FedEMA: clients mix local and global weights by their divergence.

Zhuang, Wen & Zhang, "Divergence-aware federated self-supervised learning", ICLR 2022, Algorithm 1: a client starts from
μ·W_k + (1 − μ)·W_g, its predictor with the same μ, where μ = min(λ_k·divergence, 1); its target stays local. λ_k is set
once, in the first round that samples the client (the autoscaler), or is one constant for all clients.
Departures: the box measures the divergence as ‖W_g − W_k‖ over backbone and projector (`global`). With it, clients run
away: a client that keeps its own weights is farther from the next global model, and soon μ is 1. The authors' code
measures how far the last local training moved the client, as the mean of the layers' norms (`drift`), which decreases
with the learning rate as in the paper's Figure 6; this is the default. With `drift`, a client computes λ_k = τ/drift
after its first training; with `global`, the server computes λ_k = τ/‖W_g − W_k‖ after the merge of that round, and for
this holds the uploads of clients without λ until the merge is done. A client that did not take part in the previous
round starts from the global model, target included. Running statistics are mixed as weights are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal

from pydantic import Field

from fedssl.algorithm import ALGORITHMS, Averaging, Upload
from fedssl.algorithms.averaged import Averaged
from fedssl.algorithms.divergence import encoder_norm, layer_mean
from fedssl.client import Client
from fedssl.tree import State, Tree, model, number

# A site with this key sets λ in a client's first round. Sites written by earlier versions lack it: there, a client sets
# λ when it first takes part in two consecutive rounds, and a resumed run keeps that rule.
LAM_FROM_FIRST_ROUND = "lam_from_first_round"


@ALGORITHMS.register("fedema")
class FedEMA(Averaged):
    divergence: Literal["drift", "global"] = "drift"  # of its last training, or from the global model
    tau: float = Field(0.7, ge=0, le=1)  # the first μ, where λ is set by it
    lam: float | None = Field(None, ge=0)  # the paper's λ, the same for all; None: each client's own, from τ
    encoder_mu: float | None = Field(None, ge=0, le=1)  # in place of μ for all but the predictor
    predictor_mu: float | None = Field(None, ge=0, le=1)  # in place of μ for the predictor; 0: it is the global one

    def init(self, home: Client) -> Tree:
        return {**super().init(home), LAM_FROM_FIRST_ROUND: True}

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        """The model and, where the server has computed it, the client's own λ."""
        message = {key: site[key] for key in ("model", LAM_FROM_FIRST_ROUND) if key in site}
        lam = site.get(_lam_key(client_id))
        return message if lam is None else {**message, "lam": lam}

    def begin(self, client: Client, message: Tree) -> None:
        if client.memory.get("round") == client.round - 1:
            super().begin(client, {"model": self._mixed(client, message)})
        else:
            super().begin(replace(client, memory=_private(client)), message)

    def _mixed(self, client: Client, message: Tree) -> State:
        """μ·W_k + (1 − μ)·W_g."""
        sent = model(message, "model")
        own = model(client.memory, "online")
        diverged = encoder_norm(sent, own).item() if self.divergence == "global" else number(client.memory, "drift")
        lam = self._lam(client, message, diverged)
        mu = min(lam * diverged, 1.0)
        client.notes.update(divergence=diverged, lam=lam, mu=mu)
        encoder = [part for part in client.method.online if part != "predictor"]
        mixed = sent
        for parts, fixed in ((encoder, self.encoder_mu), (["predictor"], self.predictor_mu)):
            mixed = mixed.overwritten(sent.pick(parts).lerp(own.pick(parts), mu if fixed is None else fixed))
        return mixed

    def _lam(self, client: Client, message: Tree, diverged: float) -> float:
        """λ_k; 0 while it is not known, which starts the client from the global model."""
        if self.lam is not None:
            return self.lam
        if LAM_FROM_FIRST_ROUND not in message:
            return number(client.memory, "lam", self._scaled(diverged))
        return number(message if self.divergence == "global" else client.memory, "lam", 0.0)

    def _scaled(self, diverged: float) -> float:
        """The λ that turns this divergence into μ = τ; 0 where nothing diverged."""
        return self.tau / diverged if diverged else 0.0

    def client(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        self.begin(client, message)
        state = client.method.state
        start = state.pick(("backbone",))
        client.train(self.objective, self.given(client, message), self.draw)
        drift = layer_mean(start, state).item()
        client.notes["drift"] = drift
        memory = {"online": state.pick(client.method.online), "drift": drift, "round": client.round}
        lam = self._remembered_lam(client, message, drift)
        if lam:
            memory["lam"] = lam
        return self.upload(client, message), {**self.remember(client, message), **memory}

    def _remembered_lam(self, client: Client, message: Tree, drift: float) -> float:
        """The λ a client keeps: set after its first training, and never changed."""
        if LAM_FROM_FIRST_ROUND not in message:
            return client.notes.get("lam") or number(client.memory, "lam", 0.0)
        if self.lam is not None or self.divergence == "global":
            return 0.0
        return number(client.memory, "lam", 0.0) or self._scaled(drift)

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        unscaled: list[Upload] = []  # of clients without λ, held for a second pass: in round 1, every upload
        computes_lam = self.lam is None and self.divergence == "global" and LAM_FROM_FIRST_ROUND in site

        def hold_if_unscaled(upload: Upload) -> Upload:
            if computes_lam and _lam_key(upload.client) not in site:
                unscaled.append(upload)
            return upload

        merged = super().merge({"model": site["model"]}, map(hold_if_unscaled, uploads), mean)
        lams = {}
        for upload in unscaled:
            lam = self._scaled(encoder_norm(model(merged, "model"), model(upload.tree, "model")).item())
            if lam:  # a client that is alone does not diverge from the mean; a later round sets its λ
                lams[_lam_key(upload.client)] = lam
        return {**site, **merged, **lams}


def _lam_key(client_id: str) -> str:
    return f"lam/{client_id}"


def _private(client: Client) -> Tree:
    """What a client that was away keeps: all but the model, such as a queue."""
    kept = client.memory.get("kept")
    private = kept.layout.pick(client.method.private) if isinstance(kept, State) else None
    return {"kept": kept.restricted(private)} if isinstance(kept, State) and private and private.entries else {}
