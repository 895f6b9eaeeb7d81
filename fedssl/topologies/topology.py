"""The contract of a topology: clients and sites of a round, and the weights of uploads.

Topologies with one server or without merging are here, peers are in graphs.py. A topology does not
depend on the algorithm.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedssl.core.seeds import generator
from fedssl.core.settings import Registry, Settings

SERVER = "server"
MEAN = "mean"  # name of the mean of all sites' models


@dataclass(frozen=True)
class Plan:
    """One round: the clients that take part, their sites, and the weights of their uploads.

    `mixing[site][client]` is a fixed weight, or None: the weight is then the client's number of
    images, or 1 if the algorithm weighs clients uniformly.
    """

    site_of: Mapping[str, str]  # client -> site, in the clients' order
    mixing: Mapping[str, Mapping[str, float | None]]  # site -> client -> weight

    @property
    def sites(self) -> Iterable[str]:
        """Return the sites that merge uploads in this round."""
        return self.mixing

    @property
    def senders(self) -> frozenset[str]:
        """Return the clients whose uploads reach a site other than their own."""
        senders: set[str] = set()
        for site, clients in self.mixing.items():
            senders |= clients.keys() - {site}
        return frozenset(senders)

    def weight(self, site: str, client: str, images: float, weights: str) -> float:
        """Return the weight of a client's upload at a site that it reaches.

        `weights` is the algorithm's setting: "size" or "uniform".
        """
        fixed = self.mixing[site][client]
        if fixed is not None:
            return fixed
        if weights == "size":
            return float(images)
        return 1.0


class Topology(Settings, ABC):
    """Contract of a topology: which sites exist, and the plan of each round.

    A subclass defines `plan` and, without a server, `sites`. Its fields are keys under [topology].
    """

    has_server: ClassVar[bool] = True
    merges: ClassVar[bool] = True  # True if a site's model is made of several clients' uploads
    # True if many sites converge to one model, so that their mean is worth measuring too.
    consensus: ClassVar[bool] = False

    def sites(self, clients: Sequence[str]) -> list[str]:
        """Return the names of the sites that have a model."""
        return [SERVER]

    def owners(self, parts: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the indices of each client's images, given the partition."""
        return parts

    def participants(self, clients: int) -> int:
        """Return how many of this many clients take part in a round."""
        return clients

    @abstractmethod
    def plan(self, clients: Sequence[str], round: int, seed: int) -> Plan:
        """Return the plan of a round over the clients that have images.

        The plan is the same for the same (round, seed).
        """


def participants(clients: int, share: float) -> int:
    """Return the number of clients in a share of them, at least one."""
    return max(1, math.floor(share * clients + 0.5))


def sample_clients(clients: Sequence[str], share: float, round: int, seed: int) -> list[str]:
    """Return a random share of the clients, at least one, in their order."""
    count = participants(len(clients), share)
    order = torch.randperm(len(clients), generator=generator(seed, round, "participation"))
    return [clients[i] for i in sorted(order[:count].tolist())]


def own_sites(clients: Sequence[str]) -> dict[str, str]:
    """Return the site of each client where each is its own site."""
    return dict(zip(clients, clients, strict=True))


TOPOLOGIES: Registry[Topology] = Registry(
    "topology", "fedssl.topologies", modules=["fedssl.topologies.graphs"]
)


@TOPOLOGIES.register("star")
class Star(Topology):
    """One server; each round a random share of the clients takes part, at least one."""

    participation: float = Field(1.0, gt=0, le=1)

    def participants(self, clients: int) -> int:
        """Return how many of this many clients take part in a round."""
        return participants(clients, self.participation)

    def plan(self, clients: Sequence[str], round: int, seed: int) -> Plan:
        """Return a plan in which the server merges the uploads of a random share of clients."""
        chosen = sample_clients(clients, self.participation, round, seed=seed)
        return Plan(dict.fromkeys(chosen, SERVER), {SERVER: dict.fromkeys(chosen)})


@TOPOLOGIES.register("isolated")
class Isolated(Topology):
    """No merging: each client trains alone (the papers' standalone training)."""

    has_server: ClassVar[bool] = False
    merges: ClassVar[bool] = False

    def sites(self, clients: Sequence[str]) -> list[str]:
        """Return the clients: each is a site."""
        return list(clients)

    def plan(self, clients: Sequence[str], round: int, seed: int) -> Plan:
        """Return a plan in which each client keeps its model."""
        mixing = {}
        for client in clients:
            mixing[client] = {client: 1.0}
        return Plan(own_sites(clients), mixing)


@TOPOLOGIES.register("centralized")
class Centralized(Topology):
    """One client with all images: the result of training if the images could be pooled."""

    merges: ClassVar[bool] = False

    def owners(self, parts: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return one client, "all", that owns all images."""
        return {"all": torch.cat(list(parts.values())).sort().values}

    def plan(self, clients: Sequence[str], round: int, seed: int) -> Plan:
        """Return a plan in which the server takes over the client's model."""
        return Plan(dict.fromkeys(clients, SERVER), {SERVER: dict.fromkeys(clients)})
