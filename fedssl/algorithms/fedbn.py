"""FedBN: normalisation layers stay with their client; all else is averaged.

Li et al., "FedBN: Federated learning on non-IID features via local batch normalization", ICLR 2021, Algorithm 1: the
server averages every layer but those of batch normalisation, which go on from where the client's own training left
them. A client's model is then the global weights with its own layers, and there is no global model.
Departures: layers of every kind stay, LayerNorm too, with their running statistics and counters. A newcomer's begin as
those of the first model. With `eval_norm = "mean"` the layers travel after all and are averaged, for a global model to
be measured with; clients do not get them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar, Literal

from fedssl.algorithm import ALGORITHMS, Spec
from fedssl.algorithms.averaged import Averaged
from fedssl.client import Client
from fedssl.layout import Layout
from fedssl.method import Method
from fedssl.tree import State, Tree, model


@ALGORITHMS.register("fedbn")
class FedBN(Averaged):
    personalises: ClassVar[bool] = True
    eval_norm: Literal["none", "mean"] = "none"  # mean: layers travel and are averaged, for a global model to measure

    def shared(self, method: Method) -> Layout:
        return split(method.state.layout.pick(method.online))[1]

    def wire(self, method: Method) -> Mapping[str, Spec]:
        travelling = self._travelling(method)
        return {"model": self.shared(method)} | ({"norms": travelling} if travelling.entries else {})

    def init(self, home: Client) -> Tree:
        return {**super().init(home), **self._norms(home, self._travelling(home.method))}

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return {"model": site["model"]}  # norm layers in it are the first model's, for newcomers

    def reference(self, site: Tree) -> Tree:
        return {"norms": site["norms"]} if "norms" in site else {}

    def begin(self, client: Client, message: Tree) -> None:
        super().begin(client, {"model": self.personal(message, client.memory) or message["model"]})

    def upload(self, client: Client, message: Tree) -> Tree:
        norms = self._norms(client, self._travelling(client.method))
        if norms:
            client.notes["norms_sent"] = 1.0
        return {**super().upload(client, message), **norms}

    def remember(self, client: Client, message: Tree) -> Tree:
        own = split(client.method.state.layout.pick(client.method.online))[0]
        return {**super().remember(client, message), **self._norms(client, own)}

    def export(self, site: Tree) -> dict[str, State]:
        weights = model(site, "model")
        if "norms" in site:
            return {"global": weights.overwritten(model(site, "norms"))}
        return {} if split(weights.layout)[0].entries else {"global": weights}

    def personal(self, message: Tree, memory: Tree) -> State | None:
        return model(message, "model").overwritten(model(memory, "norms")) if "norms" in memory else None

    def _travelling(self, method: Method) -> Layout:
        """The norm layers that are uploaded: all or none."""
        norms = split(method.state.layout.pick(method.online))[0]
        return norms if self.eval_norm == "mean" else norms.pick(parts=())

    def _norms(self, client: Client, layout: Layout) -> dict[str, State]:
        return {"norms": client.method.state.restricted(layout)} if layout.entries else {}


@lru_cache(maxsize=16)
def split(layout: Layout) -> tuple[Layout, Layout]:
    """Normalisation layers, counters of their batches included, and all else."""
    layers = {_owner(entry.name) for entry in layout.entries if entry.role in ("norm", "statistic")}
    norms, rest = (
        Layout(tuple(entry for entry in layout.entries if (_owner(entry.name) in layers) == wanted))
        for wanted in (True, False)
    )
    return norms, rest


def _owner(name: str) -> str:
    return name.rpartition(".")[0]
