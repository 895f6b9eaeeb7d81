"""FedBN: normalisation layers stay with their client; all else is averaged.

Li et al., "FedBN: Federated learning on non-IID features via local batch normalization", ICLR 2021,
Algorithm 1: the server averages every layer except those of batch normalisation, which continue
from the client's own last training. A client's model is the global weights with its own layers, and
there is no global model.
Departures: layers of every kind stay, LayerNorm too, with their running statistics and counters. A
newcomer starts with those of the first model. With `eval_norm = "mean"` the layers are uploaded
after all and averaged, in order to measure a global model; clients do not receive them. With
"mean-only" it is measured alone, as in the code of Dec-SSL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import ClassVar, Literal

from fedssl.algorithm import ALGORITHMS, Algorithm, Averaging, Spec, Upload
from fedssl.algorithms._averaging import (
    average,
    keep,
    load_model,
    online_layout,
    online_model,
    stored_models,
)
from fedssl.core.state.layout import Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.method import Method
from fedssl.training.client import Client


@ALGORITHMS.register("fedbn")
class FedBN(Algorithm):
    """Normalisation layers stay with their client; all else is averaged."""

    personalises: ClassVar[bool] = True

    # mean: layers travel and are averaged, for a global model to measure; mean-only: that model is
    # measured in place of the clients'
    eval_norm: Literal["none", "mean", "mean-only"] = "none"

    @property
    def measures_clients(self) -> bool:
        return self.eval_norm != "mean-only"

    @property
    def needs_only_means(self) -> bool:
        return True

    def upload_schema(self, method: Method) -> Mapping[str, Spec]:
        norms, shared = split(online_layout(method))
        if self.eval_norm != "none" and norms.entries:
            return {"model": shared, "norms": norms}
        return {"model": shared}

    def init(self, client: Client) -> Tree:
        return {"model": online_model(client.method), **self._uploaded_norms(client.method)}

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return {"model": site["model"]}  # its norm layers are the first model's, for newcomers

    def statistics_reference(self, site: Tree) -> Tree:
        if "norms" not in site:
            return {}
        return {"norms": site["norms"]}

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        start = self.personal(message, client.memory) or model(message, "model")
        load_model(client, start, *stored_models(client.memory, "kept"))
        client.train(self.objective, self.constants(client, message), self.draw)
        memory = {**keep(client, client.method.persistent_parts), **norm_layers(client.method)}
        return self._upload(client), memory

    def _upload(self, client: Client) -> Tree:
        _, shared = split(online_layout(client.method))
        norms = self._uploaded_norms(client.method)
        if norms:
            client.notes["norms_sent"] = 1.0
        return {"model": client.method.state.restricted(shared), **norms}

    def _uploaded_norms(self, method: Method) -> Tree:
        """Return the norm layers that are uploaded: all of them, or none."""
        if self.eval_norm == "none":
            return {}
        return norm_layers(method)

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        return average(site, uploads, mean)

    def export(self, site: Tree) -> dict[str, State]:
        weights = model(site, "model")
        if "norms" in site:
            return {"global": weights.overwritten(model(site, "norms"))}
        norms, _ = split(weights.layout)
        if norms.entries:
            return {}
        return {"global": weights}

    def personal(self, message: Tree, memory: Tree) -> State | None:
        """Return the global weights with the client's own norm layers."""
        if "norms" not in memory:
            return None
        return model(message, "model").overwritten(model(memory, "norms"))


def norm_layers(method: Method) -> Tree:
    """Return a copy of the norm layers under the key "norms"; empty if there are none."""
    norms, _ = split(online_layout(method))
    if not norms.entries:
        return {}
    return {"norms": method.state.restricted(norms)}


@lru_cache(maxsize=16)
def split(layout: Layout) -> tuple[Layout, Layout]:
    """Return the normalisation layers, including their batch counters, and all other entries."""
    layers = set()
    for entry in layout.entries:
        if entry.role in ("norm", "statistic"):
            layers.add(_layer(entry.name))
    norms = []
    shared = []
    for entry in layout.entries:
        if _layer(entry.name) in layers:
            norms.append(entry)
        else:
            shared.append(entry)
    return Layout(tuple(norms)), Layout(tuple(shared))


def _layer(name: str) -> str:
    return name.rpartition(".")[0]
