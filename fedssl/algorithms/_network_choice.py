"""FedU's Table 4: which network of a client is uploaded, and which one the global model replaces.

Zhuang et al., "Collaborative unsupervised visual representation learning from decentralized data",
ICCV 2021, Table 4, compares these choices for methods that train an online network and a target.
With the defaults, the online network is uploaded and replaced, and the target stays local.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Literal

from fedssl.algorithm import Algorithm, Spec
from fedssl.algorithms._averaging import keep, load_model, online_model, stored_models
from fedssl.core.state.layout import Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.method import Method
from fedssl.training.client import Client

TARGET = ("target",)


class NetworkChoice(Algorithm, ABC):
    """Settings of FedAvg and its variants, with the functions that depend on them.

    A site holds "model" and, with `aggregate = "both"`, "target". Subclasses define
    `client_update`, `merge` and `needs_only_means`.
    """

    # which network is averaged; both: each with its own kind
    aggregate: Literal["online", "target", "both"] = "online"
    # what the global encoder replaces at a client
    update: Literal["online", "target", "both"] = "online"
    # whether the predictor travels and is averaged, or stays with its client
    predictor: Literal["global", "local"] = "global"

    @property
    def requires(self) -> frozenset[str]:
        parts = set()
        if self.aggregate != "online" or self.update != "online":
            parts.add("target")
        if self.predictor == "local":
            parts.add("predictor")
        return frozenset(parts)

    def upload_schema(self, method: Method) -> Mapping[str, Spec]:
        schema = {"model": self.shared(method)}
        if self.aggregate == "both":
            schema["target"] = method.state.layout.pick(TARGET)
        return schema

    def shared(self, method: Method) -> Layout:
        """Return the layout of the model that is uploaded."""
        parts = set(method.online)
        if self.predictor == "local":
            parts.discard("predictor")
        return method.state.layout.pick(parts)

    def local_parts(self, method: Method) -> set[str]:
        """Return the parts that stay at a client between rounds."""
        parts = set(method.private)
        if self.predictor == "local":
            parts.add("predictor")
        if self.update == "online":
            parts |= {"target"} & set(method.persistent_parts)
        if self.update == "target":
            parts |= set(method.mirrored)
        return parts

    def initial_models(self, method: Method) -> dict[str, State]:
        """Return the models of a site before the first round."""
        models = {"model": online_model(method)}
        if self.aggregate == "both":
            models["target"] = method.state.pick(TARGET)
        return models

    def start(self, client: Client, message: Tree) -> None:
        """Load the global networks, then the parts that the client kept."""
        target = stored_models(message, "target")
        kept = stored_models(client.memory, "kept")
        load_model(client, model(message, "model"), *target, *kept)

    def upload(self, client: Client) -> Tree:
        """Return the networks that a client uploads after training."""
        state = client.method.state
        models = {"model": state.restricted(self.shared(client.method))}
        if self.aggregate == "target":
            models["model"].load(state.pick(TARGET).without_prefix("target"))
        if self.aggregate == "both":
            models["target"] = state.pick(TARGET)
        return models

    def memory(self, client: Client) -> Tree:
        """Return the parts that a client keeps after training."""
        return keep(client, self.local_parts(client.method))
