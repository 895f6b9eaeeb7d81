"""FedAvg: the mean of the clients' models, weighted by their number of images.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017; with the
choices FedU's Table 4 compares for methods that train an online network beside a target: which of the two is
aggregated, which is replaced by the result, and whether the predictor is shared.
Departures: running statistics are averaged with the weights; counters keep the largest. In a client's first round
its target and predictor start from the global model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from fedssl.algorithm import ALGORITHMS, Algorithm, Averaging, Spec, Upload
from fedssl.client import Client
from fedssl.method import Method
from fedssl.tree import State, Tree, model


@ALGORITHMS.register("fedavg")
class FedAvg(Algorithm):
    aggregate: Literal["online", "target", "both"] = "online"  # both: each with its own kind
    update: Literal["online", "target", "both"] = "online"  # what the global encoder replaces at a client
    predictor: Literal["global", "local"] = "global"

    @property
    def requires(self) -> frozenset[str]:
        target = set() if self.aggregate == self.update == "online" else {"target"}
        return frozenset(target | ({"predictor"} if self.predictor == "local" else set()))

    def shared(self, method: Method) -> list[str]:
        """Parts that travel."""
        return [p for p in method.online if p != "predictor" or self.predictor == "global"]

    def kept(self, method: Method) -> set[str]:
        """Parts that outlive a round at the client."""
        local = {*method.private, *(() if self.predictor == "global" else ("predictor",))}
        if self.update == "online":
            local |= {"target"} & set(method.kept)
        if self.update == "target":
            local |= set(method.mirrored)
        return local & method.provides

    def wire(self, method: Method) -> Mapping[str, Spec]:
        layout = method.state.layout
        wire: dict[str, Spec] = {"model": layout.pick(self.shared(method))}
        if self.aggregate == "both":
            wire["target"] = layout.pick(("target",))
        return wire

    def init(self, home: Client) -> Tree:
        state = home.method.state
        site = {"model": state.pick(home.method.online)}
        return site | ({"target": state.pick(("target",))} if self.aggregate == "both" else {})

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return site

    def client(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        method, state = client.method, client.method.state
        state.load(model(message, "model"))
        own = [model(tree, key) for tree, key in ((message, "target"), (client.memory, "kept")) if key in tree]
        if method.provides - {*method.online, *(part for found in own for part in found.layout.parts)}:
            method.fresh(client.generator("fresh"))  # the target copies the global encoder …
        for found in own:  # … unless it is sent, or the client has its own from an earlier round
            state.load(found)
        client.train(self.objective, self.given(client, message))
        kept = self.kept(method)
        return self.upload(method), {"kept": state.pick(kept)} if kept else {}

    def upload(self, method: Method) -> Tree:
        mine = method.state.pick(self.shared(method))
        if self.aggregate == "target":
            mine.load(method.state.pick(("target",)).without_prefix("target"))
        target = {"target": method.state.pick(("target",))} if self.aggregate == "both" else {}
        return {"model": mine} | target

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        means = {key: mean() for key in site}
        for upload in uploads:
            for key, total in means.items():
                total.add(model(upload.tree, key), upload.weight)
            del upload  # or it would live on until the next one has come
        # Overwritten, not replaced: a predictor that stays local keeps its first value here, for newcomers.
        return {key: model(site, key).overwritten(total.result()) for key, total in means.items()}

    def export(self, site: Tree) -> dict[str, State]:
        return {"global": model(site, "model")}
