"""Who merges what: one server, or nobody; peers in graphs.py. A topology knows nothing of algorithms."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedssl.seeds import generator
from fedssl.settings import Registry, Settings

SERVER = "server"
MEAN = "mean"  # names the mean of all sites' models beside theirs


@dataclass(frozen=True)
class Plan:
    """One round: who takes part and at which site each is at home; what flows from a client to a site, how heavy.

    `mixing[site][client]` is a fixed weight; None: the client's number of images decides, or nothing does.
    """

    home: Mapping[str, str]  # client -> site, in the clients' order
    mixing: Mapping[str, Mapping[str, float | None]]  # site -> client -> weight

    @property
    def sites(self) -> Iterable[str]:
        return self.mixing

    @property
    def heard(self) -> frozenset[str]:
        """Clients whose uploads reach somebody else than themselves."""
        return frozenset(client for site, clients in self.mixing.items() for client in clients if client != site)

    def weight(self, site: str, client: str, images: float, weights: str) -> float:
        """How much a client's upload counts at a site it reaches; `weights` is the algorithm's: size or uniform."""
        fixed = self.mixing[site][client]
        return fixed if fixed is not None else float(images) if weights == "size" else 1.0


class Topology(Settings, ABC):
    has_server: ClassVar[bool] = True
    merges: ClassVar[bool] = True  # whether a site's model is made of several clients' uploads
    consensus: ClassVar[bool] = False  # many sites on their way to one model: their mean is worth measuring too

    def sites(self, clients: Sequence[str]) -> list[str]:
        return [SERVER]

    def owners(self, parts: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Who holds which images, given the partition."""
        return parts

    @abstractmethod
    def plan(self, clients: Sequence[str], round: int, seed: int) -> Plan:
        """A round's plan over the clients that have images; the same for the same (round, seed)."""


def taking_part(clients: Sequence[str], share: float, round: int, seed: int) -> list[str]:
    """A random share of the clients, at least one, in their order."""
    wanted = max(1, math.floor(share * len(clients) + 0.5))
    order = torch.randperm(len(clients), generator=generator(seed, round, "participation"))
    return [clients[i] for i in sorted(order[:wanted].tolist())]


TOPOLOGIES: Registry[Topology] = Registry("topology", "fedssl.topologies")


@TOPOLOGIES.register("star")
class Star(Topology):
    """One server; each round a random share of the clients takes part, at least one."""

    participation: float = Field(1.0, gt=0, le=1)

    def plan(self, clients: Sequence[str], round: int, seed: int) -> Plan:
        chosen = taking_part(clients, self.participation, round, seed)
        return Plan(dict.fromkeys(chosen, SERVER), {SERVER: dict.fromkeys(chosen)})


@TOPOLOGIES.register("isolated")
class Isolated(Topology):
    """Nobody merges: each client trains alone (the papers' standalone training)."""

    has_server: ClassVar[bool] = False
    merges: ClassVar[bool] = False

    def sites(self, clients: Sequence[str]) -> list[str]:
        return list(clients)

    def plan(self, clients: Sequence[str], round: int, seed: int) -> Plan:
        return Plan({c: c for c in clients}, {c: {c: 1.0} for c in clients})


@TOPOLOGIES.register("centralized")
class Centralized(Topology):
    """One client with everybody's images: what training would give if the images could be pooled."""

    merges: ClassVar[bool] = False

    def owners(self, parts: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"all": torch.cat(list(parts.values())).sort().values}

    def plan(self, clients: Sequence[str], round: int, seed: int) -> Plan:
        return Plan(dict.fromkeys(clients, SERVER), {SERVER: dict.fromkeys(clients)})
