"""FeatARC: each client joins the cluster model with the nearest features, and is held near them.

Wang et al., "Does learning from decentralized non-IID unlabeled data benefit from self
supervision?", ICLR 2023, Algorithm 1 (its lines are in the margin); its subroutine, Algorithm 2, is
in _feature_alignment.py.
Departures: clusters start as one model, since cosines between features of unrelated networks are
meaningless and would freeze the first choice; `start = "independent"` follows the authors' code,
with each matrix and convolution shuffled. In its first round client i joins cluster i mod C; a
client that arrives later joins by a hash of its name. Clusters are compared by backbone features.
Norm layers are averaged with the rest, as in the authors' code; the paper (Appendix C.1) leaves
them with the clients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedssl.algorithm import ALGORITHMS, Algorithm, Averaging, Spec, Upload
from fedssl.algorithms._averaging import (
    for_each,
    keep,
    load_model,
    online_layout,
    online_model,
    stored_models,
)
from fedssl.algorithms._feature_alignment import (
    align_to_features,
    alignment,
    anchors,
    distance,
)
from fedssl.core.errors import ConfigError
from fedssl.core.seeds import derive
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, Value, model, number
from fedssl.method import Batch, Constants, Method, Output
from fedssl.training.client import Client


@ALGORITHMS.register("featarc")
class FeatARC(Algorithm):
    """Each client joins the cluster model with the nearest features, and is held near them."""

    averages_all: ClassVar[bool] = False  # one for each cluster
    personalises: ClassVar[bool] = True
    added_later: ClassVar = ("aligned_to",)

    clusters: int = Field(2, ge=1, le=1000)  # the paper's C; 1: one model for all
    # the paper's λ, the weight of staying near the cluster's features; 0: no such term
    lam: float = Field(1.0, ge=0)
    # what clients are held near: the cluster's projections, as in Algorithm 2, or its backbone
    # features, as in the authors' code, which aligns the projections of both views with them
    aligned_to: Literal["projections", "features"] = "projections"
    # whether all clusters have the same first weights
    start: Literal["common", "independent"] = "common"
    # how members of a cluster count: by their images, or all alike
    weights: Literal["size", "uniform"] = "uniform"

    def upload_schema(self, method: Method) -> Mapping[str, Spec]:
        return {"model": online_layout(method), "cluster": range(self.clusters)}

    def init(self, client: Client) -> Tree:
        first = online_model(client.method)
        if self.start == "common":
            return {_key(j): first for j in range(self.clusters)}
        if client.method.settings.init is not None:
            raise ConfigError(
                'algorithm.start = "independent" shuffles the first weights, so it cannot be '
                "combined with method.init: leave out one of them"
            )
        models = {}
        for j in range(self.clusters):
            models[_key(j)] = shuffled(first, client.generator(f"cluster {j}"))
        return models

    def init_site(self, site: Tree, clients: Mapping[str, int]) -> Tree:
        first = {f"first.{client}": i % self.clusters for client, i in clients.items()}
        return {**site, **first}

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        message: dict[str, Value] = {
            "first": site.get(f"first.{client_id}", derive(client_id) % self.clusters)
        }
        for j in range(self.clusters):
            message[_key(j)] = site[_key(j)]  # line 4
        return message

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        cluster = self._join(client, message)
        received = model(message, _key(cluster))
        load_model(client, received, *stored_models(client.memory, "kept"))
        constants = self.constants(client, {"model": received})
        client.train(self.objective, constants, self.draw)  # line 15
        memory = self._memory(client, cluster)
        return {"model": online_model(client.method), "cluster": cluster}, memory  # line 16

    def _join(self, client: Client, message: Tree) -> int:
        """Return the cluster whose features are nearest to those of the client's last model."""
        last = int(number(client.memory, "cluster", number(message, "first")))
        cluster = last
        if "local" in client.memory:
            last_features = client.embed(model(client.memory, "local"))  # line 10
            distances = []
            for j in range(self.clusters):
                features = client.embed(model(message, _key(j)))  # line 9
                distances.append(distance(features, last_features).item())  # line 12
                client.notes[f"distance.{j}"] = distances[j]
            cluster = distances.index(min(distances))  # line 14
        client.notes.update(cluster=cluster, switched=float(cluster != last))
        return cluster

    def _memory(self, client: Client, cluster: int) -> Tree:
        memory = dict(keep(client, client.method.persistent_parts))
        if self.clusters > 1:
            memory["local"] = client.method.state.pick(("backbone",))
        memory["cluster"] = cluster
        return memory

    def constants(self, client: Client, message: Tree) -> Constants:
        """Return z_g, computed with the cluster model, which is `message["model"]`."""
        if not self.lam:
            return {}
        output: Literal["h", "z"] = "z"
        if self.aligned_to == "features":
            output = "h"
        return anchors(client, model(message, "model"), output)

    def objective(self, method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        loss = method.loss(out, constants)
        if not self.lam:
            return loss
        if self.aligned_to == "features":
            return loss + self.lam * align_to_features(out, batch, constants)
        return loss + self.lam * alignment(method, batch, out, constants)

    def received_keys(self, upload: Tree) -> Mapping[str, str]:
        return {"model": _key(int(number(upload, "cluster")))}

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        means: defaultdict[str, Averaging] = defaultdict(mean)

        def add(upload: Upload) -> None:
            key = _key(int(number(upload.tree, "cluster")))
            means[key].add(model(upload.tree, "model"), upload.weight)

        for_each(uploads, add)
        merged = {key: total.result() for key, total in means.items()}  # line 18
        return {**site, **merged}  # a cluster without members keeps its model

    def export(self, site: Tree) -> dict[str, State]:
        return {f"cluster {j}": model(site, _key(j)) for j in range(self.clusters)}

    def personal(self, message: Tree, memory: Tree) -> State | None:
        """Return the model of the client's cluster."""
        if "cluster" not in memory:
            return None
        return model(message, _key(int(number(memory, "cluster"))))


def shuffled(state: State, stream: torch.Generator) -> State:
    """Return other first weights: each matrix and convolution in random order, the rest copied."""
    other = state.clone()
    for entry in state.layout.entries:
        if entry.role == "weight" and len(entry.shape) in (2, 4):
            view = other.view(entry)
            order = torch.randperm(entry.size, generator=stream)
            view.copy_(view.flatten()[order.to(view.device)].view(entry.shape))
    return other


def _key(cluster: int) -> str:
    return f"model.{cluster}"
