"""FedCA: clients contrast their images with projections of everybody's, and agree on where public images lie.

Zhang et al., "Federated unsupervised representation learning", 2020, Algorithm 1. In place of the method's own loss: a
view among the batch's others and a dictionary that clients share (Eq. 4-8), + β × how far public images are from where
an alignment model has them (Eq. 11-14).
Departures: t = 0.5, since the paper gives none. It leaves open how m clients make a dictionary of K: each sends rows
drawn anew each round, K of them in the first and then K // m of the round before; a site keeps K // m of each. The row
that a client made of the very image it trains on is no negative. Rows are of clean images in eval mode. The alignment
model is trained with Eq. 4, 7 and 8 on the public images for as many rounds and epochs as a client; what it makes of
them, clean, is computed once. A step draws 128 of them, with replacement; their pass leaves running statistics alone;
Eq. 11-12 are means over images, not sums. No server is needed: a peer's dictionary is its neighbours' and its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedssl.algorithm import ALGORITHMS
from fedssl.algorithms.dictionary import EMPTY, Dictionary
from fedssl.client import Client
from fedssl.method import Batch, Given, Method, Output
from fedssl.tree import Tree, tensor

BEFORE = "training the alignment model, before the first round and the first checkpoint"


def contrast(z: Tensor, index: Tensor, dictionary: Tensor | None, entry: Tensor | None, temperature: float) -> Tensor:
    """Projections z (2, B, k) of images number `index` (B,), among the batch and a dictionary, to a 0-d loss."""
    first, second = F.normalize(z[0], dim=-1), F.normalize(z[1], dim=-1)
    logits = first @ second.T  # Eq. 4
    if dictionary is not None and entry is not None:
        void = (entry == EMPTY) | (entry == index[:, None])  # (B, K)
        logits = torch.cat([logits, (first @ dictionary.T).masked_fill(void, -torch.inf)], 1)  # Eq. 5-6
    logits = logits / temperature
    return (logits.logsumexp(1) - logits.diagonal()).mean()  # Eq. 7-8


def apart(one: Tensor, other: Tensor) -> Tensor:
    """Squared distances of rows (n, d), their mean."""
    return (one - other).square().sum(1).mean()


@ALGORITHMS.register("fedca")
class FedCA(Dictionary):
    needs_pairs: ClassVar[bool] = True
    temperature: float = Field(0.5, gt=0)  # of the softmax over batch and dictionary, the paper's t
    beta: float = Field(0.01, ge=0)  # weight of the alignment; 0: none, and no public images are needed
    aligned: int = Field(128, ge=2, le=10_000)  # public images in a step

    @property
    def needs_public(self) -> bool:
        return self.beta > 0

    def init(self, home: Client) -> Tree:
        return {**super().init(home), **(self._alignment(home) if self.beta else {})}

    def _alignment(self, home: Client) -> Tree:
        """Server, line 2: all that is kept of the alignment model is what it makes of the public images."""
        assert home.public is not None
        state, first = home.method.state, home.method.state.clone()
        with home.meter(BEFORE, home.rounds) as advance:
            for r in range(home.rounds):
                rate, progress = home.trainer.settings.rate(r, home.rounds), r / home.rounds
                replace(home, pixels=home.public, round=r, rate=rate, progress=progress).train(self.contrast, {})
                advance(1)
        h, z = home.trainer.embed(home.public, "h"), home.trainer.embed(home.public, "z")
        state.load(first)
        return {"h_align": h, "z_align": z}

    def given(self, client: Client, message: Tree) -> Given:
        if not self.beta:
            return super().given(client, message)
        assert client.public is not None
        targets = {key: tensor(message, key) for key in ("h_align", "z_align")}
        return {**super().given(client, message), **targets, "public": client.public}

    def draw(self, n: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        return {"public": torch.rand(self.aligned, generator=generator, device=generator.device)} if self.beta else {}

    def contrast(self, method: Method, batch: Batch, out: Output, given: Given) -> Tensor:
        return contrast(out.z, batch.index, given.get("dictionary"), given.get("entry"), self.temperature)

    def objective(self, method: Method, batch: Batch, out: Output, given: Given) -> Tensor:
        loss = self.contrast(method, batch, out, given)
        if not self.beta:
            return loss
        some = (batch.draws["public"] * len(given["public"])).long()
        seen = method.encode(method.clean(given["public"][some]), tracked=False)
        far = apart(seen.h, given["h_align"][some]) + apart(seen.z, given["z_align"][some])  # Eq. 11-13
        return loss + self.beta * far  # Eq. 14

    def client(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        done = super().client(client, message)
        if self.beta:
            ours, both = client.measure(self.given(client, message), self.contrast, self.objective, draw=self.draw)
            client.notes["alignment_ratio"] = (both - ours) / max(ours, 1e-12)
        return done
