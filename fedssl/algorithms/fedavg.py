"""FedAvg: the mean of the clients' models, weighted by their number of images.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017; with the
choices FedU's Table 4 compares for methods that train an online network beside a target: which of the two is
aggregated, which is replaced by the result, and whether the predictor is shared.
Departures: running statistics are averaged with the weights; counters keep the largest. In a client's first round
its target and predictor start from the global model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fedssl.algorithm import ALGORITHMS, Spec
from fedssl.algorithms.averaged import Averaged
from fedssl.client import Client
from fedssl.layout import Layout
from fedssl.method import Method
from fedssl.tree import Tree, model


@ALGORITHMS.register("fedavg")
class FedAvg(Averaged):
    aggregate: Literal["online", "target", "both"] = "online"  # both: each with its own kind
    update: Literal["online", "target", "both"] = "online"  # what the global encoder replaces at a client
    predictor: Literal["global", "local"] = "global"

    @property
    def requires(self) -> frozenset[str]:
        target = set() if self.aggregate == self.update == "online" else {"target"}
        return frozenset(target | ({"predictor"} if self.predictor == "local" else set()))

    def shared(self, method: Method) -> Layout:
        return method.state.layout.pick([p for p in method.online if p != "predictor" or self.predictor == "global"])

    def kept(self, method: Method) -> Layout:
        local = {*method.private, *(() if self.predictor == "global" else ("predictor",))}
        if self.update == "online":
            local |= {"target"} & set(method.kept)
        if self.update == "target":
            local |= set(method.mirrored)
        return method.state.layout.pick(local)

    def wire(self, method: Method) -> Mapping[str, Spec]:
        target = {"target": method.state.layout.pick(("target",))} if self.aggregate == "both" else {}
        return {"model": self.shared(method)} | target

    def init(self, home: Client) -> Tree:
        target = {"target": home.method.state.pick(("target",))} if self.aggregate == "both" else {}
        return {**super().init(home), **target}

    def upload(self, client: Client, message: Tree) -> Tree:
        state, sent = client.method.state, super().upload(client, message)
        if self.aggregate == "target":
            model(sent, "model").load(state.pick(("target",)).without_prefix("target"))
        target = {"target": state.pick(("target",))} if self.aggregate == "both" else {}
        return {**sent, **target}
