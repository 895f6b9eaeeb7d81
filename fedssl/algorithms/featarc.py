"""FeatARC: each client joins the cluster model whose features are nearest to its own, and is held near them.

Wang et al., "Does learning from decentralized non-IID unlabeled data benefit from self supervision?", ICLR 2023,
Algorithm 1 (its lines are in the margin); its subroutine, Algorithm 2, is in alignment.py.
Departures: clusters start as one model, since cosines between features of unrelated networks mean nothing and would
freeze the first choice; `start = "independent"` is as the authors' code has it, each matrix and convolution shuffled.
In its first round client i joins cluster i mod C; who comes later, by a hash of its name. Clusters are told apart by
backbone features. Norm layers are averaged with the rest, as in the authors' code; the paper (Appendix C.1) leaves them
with the clients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedssl.algorithm import ALGORITHMS, Averaging, Spec, Upload
from fedssl.algorithms.alignment import alignment, distance, projections
from fedssl.algorithms.averaged import Averaged
from fedssl.algorithms.shuffle import shuffled
from fedssl.client import Client
from fedssl.errors import ConfigError
from fedssl.method import Batch, Given, Method, Output
from fedssl.seeds import derive
from fedssl.tree import State, Tree, model, number


@ALGORITHMS.register("featarc")
class FeatARC(Averaged):
    one_mean: ClassVar[bool] = False  # one for each cluster
    personalises: ClassVar[bool] = True
    clusters: int = Field(2, ge=1, le=1000)  # the paper's C; 1: one model for all
    lam: float = Field(1.0, ge=0)  # the paper's λ, the weight of staying near the cluster's features; 0: no such term
    start: Literal["common", "independent"] = "common"  # whether all clusters have the same first weights
    weights: Literal["size", "uniform"] = "uniform"  # how members of a cluster count: by their images, or all alike

    def wire(self, method: Method) -> Mapping[str, Spec]:
        return {"model": self.shared(method), "cluster": range(self.clusters)}

    def init(self, home: Client) -> Tree:
        first = home.method.state.pick(home.method.online)
        if self.start == "common":
            return {_key(j): first for j in range(self.clusters)}
        if home.method.settings.init is not None:
            raise ConfigError('algorithm.start = "independent" would shuffle the weights that method.init names')
        return {_key(j): shuffled(first, home.generator(f"cluster {j}")) for j in range(self.clusters)}

    def enrol(self, site: Tree, clients: Mapping[str, int]) -> Tree:
        return {**site, **{f"first.{client}": i % self.clusters for client, i in clients.items()}}

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        first = site.get(f"first.{client_id}", derive(client_id) % self.clusters)
        return {"first": first, **{_key(j): site[_key(j)] for j in range(self.clusters)}}  # 4

    def client(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        cluster = self._join(client, message)
        upload, memory = super().client(client, {"model": message[_key(cluster)]})  # 15
        local = {"local": client.method.state.pick(("backbone",))} if self.clusters > 1 else {}
        return {**upload, "cluster": cluster}, {**memory, **local, "cluster": cluster}  # 16

    def _join(self, client: Client, message: Tree) -> int:
        last = cluster = int(number(client.memory, "cluster", number(message, "first")))
        if "local" in client.memory:
            own = client.embed(model(client.memory, "local"))  # 8 to 12
            distances = [distance(client.embed(model(message, _key(j))), own).item() for j in range(self.clusters)]
            cluster = min(range(self.clusters), key=distances.__getitem__)  # 14
            client.notes.update({f"distance.{j}": d for j, d in enumerate(distances)})
        client.notes.update(cluster=cluster, switched=float(cluster != last))
        return cluster

    def given(self, client: Client, message: Tree) -> Given:
        return projections(client, model(message, "model")) if self.lam else {}

    def objective(self, method: Method, batch: Batch, out: Output, given: Given) -> Tensor:
        loss = method.loss(out, given)
        return loss + self.lam * alignment(method, batch, out, given) if self.lam else loss

    def renamed(self, upload: Tree) -> Mapping[str, str]:
        return {"model": _key(int(number(upload, "cluster")))}

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        means: defaultdict[str, Averaging] = defaultdict(mean)
        for upload in uploads:
            key = _key(int(number(upload.tree, "cluster")))
            means[key].add(model(upload.tree, "model"), upload.weight)
            del upload  # or it would live on until the next one has come
        return {**site, **{key: total.result() for key, total in means.items()}}  # 18

    def export(self, site: Tree) -> dict[str, State]:
        return {f"cluster {j}": model(site, _key(j)) for j in range(self.clusters)}

    def personal(self, message: Tree, memory: Tree) -> State | None:
        return model(message, _key(int(number(memory, "cluster")))) if "cluster" in memory else None


def _key(cluster: int) -> str:
    return f"model.{cluster}"
