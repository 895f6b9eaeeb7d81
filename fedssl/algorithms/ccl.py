"""CCL: clients share features of mixed images, so that each learns from what others have and it has not.

Wu et al., "Decentralized unsupervised learning of visual representations", IJCAI 2022, for MoCo. Main and momentum
models are averaged, each with its own kind (Sect. 3). Features of other clients are negatives beside the local queue
(feature fusion, Eq. 3), and each query is drawn to its nearest among both (neighbourhood matching, Eq. 7–11).
Departures: the paper gives no settings; these are ours. At most `remote` features enter a client's loss, drawn anew
each round: those of a hundred clients would be 400,000. With fusion, Eq. 3 takes the place of the method's own loss,
temperature included. Both views are queries, summed over, as in MoCo here. Features are made after local training, and
are sent on in the next round only. As long as a client has none of others, as in round 1, its negatives are local,
`remote_only` or not. Mixed images are not flipped by default: of flipped ones the network makes features that say
nothing of their class, and lie close together (`results/ccl/features.json`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedssl.algorithm import ALGORITHMS
from fedssl.algorithms.contrast import candidates_among, fused_contrast, neighbourhood_matching
from fedssl.algorithms.sharing import Sharing, local_keys, others
from fedssl.client import Client
from fedssl.errors import ConfigError
from fedssl.method import Batch, Given, Method, Output
from fedssl.tree import Tree


@ALGORITHMS.register("ccl")
class CCL(Sharing):
    fusion: bool = True  # features of other clients are negatives too
    remote_only: bool = False  # with fusion: they are the only negatives (Eq. 5)
    remote: int = Field(16384, gt=0)  # features of others in a client's loss, at most
    tau: float = Field(0.1, gt=0)  # temperature of Eq. 3
    lam: float = Field(0.05, ge=0)  # λ, the weight of neighbourhood matching; 0: none
    tau_nm: float = Field(0.05, gt=0)  # temperature of Eq. 10
    neighbours: int = Field(10, gt=0)  # N: the nearest features, to which a query is matched
    candidates: int = Field(4096, gt=0)  # K: features among which these are found, drawn in every step; at most

    @property
    def shares(self) -> bool:
        return self.fusion or self.lam > 0

    def init(self, home: Client) -> Tree:
        if self.lam and self.neighbours >= min(len(local_keys(home.method)), self.candidates):
            raise ConfigError(f"{self.neighbours} neighbours: method.queue and algorithm.candidates must be above that")
        return super().init(home)

    def client(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        self.begin(client, message)
        given = self.given(client, message)
        draw = candidates_among(given["known"], self.candidates) if self.lam else self.draw
        client.train(self.objective, given, draw)
        return self.upload(client, message), self.remember(client, message)

    def given(self, client: Client, message: Tree) -> Given:
        """remote (r, d): features of others. Of n local keys and these, (n + r,): which are known, which negatives."""
        if not self.shares:
            return {}
        remote, count = others(message, client.id, self.remote, client.generator("remote"))
        client.notes["remote"] = count
        local = len(local_keys(client.method))
        place = torch.arange(local + len(remote), device=remote.device)
        known = place < local + count
        negative = known & (place >= local) if self.remote_only and count else known  # Eq. 5
        return {"remote": remote, "known": known, "negative": negative}

    def objective(self, method: Method, batch: Batch, out: Output, given: Given) -> Tensor:
        if not self.shares:
            return method.loss(out, given)
        queries, features = F.normalize(out.z, dim=-1), torch.cat([local_keys(method), given["remote"]])
        if self.fusion:
            assert out.keys is not None
            loss = fused_contrast(queries, out.keys.flip(0), features, given["negative"], self.tau)
        else:
            loss = method.loss(out, given)
        if self.lam:
            drawn = batch.draws["candidates"]
            candidates, known = features[drawn], given["known"][drawn]
            loss = loss + self.lam * neighbourhood_matching(queries, candidates, known, self.neighbours, self.tau_nm)
        return loss  # Eq. 12
