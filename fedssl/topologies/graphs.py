"""Peers without a server: each is a site and merges with its neighbours in a graph.

Weights are Metropolis's: 1 / (1 + max(dᵢ, dⱼ)) between neighbours of dᵢ and dⱼ neighbours each, and
the rest of 1 for a peer's own upload. Rows and columns then sum to 1, so that merging alone would
lead every peer to the plain mean of all (Xiao, Boyd & Lall, "Distributed average consensus with
least-mean-square deviation", JPDC 2007).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations, pairwise
from typing import ClassVar

import torch
from pydantic import Field

from fedssl.core.errors import ConfigError
from fedssl.core.seeds import generator
from fedssl.topologies.topology import (
    MEAN,
    TOPOLOGIES,
    Plan,
    Topology,
    own_sites,
    sample_clients,
)

MAX_DRAWS = 1000  # draws of a random graph before an error is raised
MAX_LISTED = 5  # listed components of a graph that is not connected, and members of each

Edge = tuple[int, int]  # two peers, by their index in the clients' order


class Graph(Topology, ABC):
    """Each round a random share of the peers takes part, at least one.

    A peer that takes part merges with the neighbours that do, with weights as if there were no
    others. The other peers neither train nor merge.
    """

    has_server: ClassVar[bool] = False
    consensus: ClassVar[bool] = True
    participation: float = Field(1.0, gt=0, le=1)  # share of the peers drawn for each round

    def sites(self, clients: Sequence[str]) -> list[str]:
        """Return the clients: each is a site."""
        return list(clients)

    def plan(self, clients: Sequence[str], round: int, seed: int) -> Plan:
        """Return a plan in which a random share of the peers merge with their neighbours."""
        if MEAN in clients:
            raise ConfigError(
                f'a client has the name "{MEAN}", which is reserved for the mean of all peers\' '
                "models: rename the client"
            )
        named_edges = []
        for i, j in self.edges_between(clients, seed):
            named_edges.append((clients[i], clients[j]))
        chosen = sample_clients(clients, self.participation, round, seed=seed)
        return Plan(own_sites(chosen), metropolis(chosen, named_edges))

    @abstractmethod
    def edges_between(self, clients: Sequence[str], seed: int) -> Iterable[Edge]:
        """Return each edge of the graph over all clients once; the same in every round."""


@TOPOLOGIES.register("cycle")
class Cycle(Graph):
    """No server: each peer merges with its predecessor and successor, the last with the first."""

    def edges_between(self, clients: Sequence[str], seed: int) -> Iterable[Edge]:
        """Return the edges of the cycle; two peers share one edge."""
        count = len(clients)
        edges = list(pairwise(range(count)))
        if count > 2:
            edges.append((0, count - 1))
        return edges


@TOPOLOGIES.register("complete")
class Complete(Graph):
    """No server: each peer merges with all others, so that all end a round with the plain mean."""

    def edges_between(self, clients: Sequence[str], seed: int) -> Iterable[Edge]:
        """Return an edge for each pair of peers."""
        return combinations(range(len(clients)), 2)


@TOPOLOGIES.register("tree")
class BinaryTree(Graph):
    """No server: the peers form a binary tree; peer k > 0 is a child of peer (k - 1) // 2."""

    def edges_between(self, clients: Sequence[str], seed: int) -> Iterable[Edge]:
        """Return an edge from each peer but the root to its parent."""
        return [((k - 1) // 2, k) for k in range(1, len(clients))]


@TOPOLOGIES.register("random")
class RandomGraph(Graph):
    """No server: any two peers are neighbours with probability `p` (Erdős-Rényi) in all rounds.

    The graph is drawn from the run's seed, repeatedly until it is connected.
    """

    p: float = Field(0.7, gt=0, le=1)  # probability of an edge; Dec-SSL has 0.7

    def edges_between(self, clients: Sequence[str], seed: int) -> Iterable[Edge]:
        """Return the edges of the connected graph drawn from the seed."""
        return _draw_connected(len(clients), self.p, seed)


@TOPOLOGIES.register("edges")
class Edges(Graph):
    """No server: neighbours are those listed. The graph must connect all clients with images."""

    edges: tuple[tuple[int | str, int | str], ...]  # pairs of clients, by name or number from 0

    def edges_between(self, clients: Sequence[str], seed: int) -> Iterable[Edge]:
        """Return the listed edges; a ConfigError if they do not connect all clients."""
        index = _index_by_reference(clients)
        edges = set()
        for a, b in self.edges:
            for reference in (a, b):
                if reference not in index:
                    raise ConfigError(
                        f"topology.edges has an edge of client {reference!r}, which does not "
                        f"exist or has no images; clients with images: {_join(clients, ', ')}"
                    )
            i = index[a]
            j = index[b]
            if i == j:
                raise ConfigError(
                    f"topology.edges has an edge from client {a!r} to itself: remove it"
                )
            edges.add((min(i, j), max(i, j)))
        parts = components(len(clients), edges)
        if len(parts) > 1:
            raise ConfigError(
                f"topology.edges does not connect all clients: the graph has {len(parts)} "
                f"separate parts ({_list_parts(parts, clients)}); add edges between them"
            )
        return sorted(edges)


def _list_parts(parts: Iterable[Iterable[int]], clients: Sequence[str]) -> str:
    """Return the names of the clients in each part: "0, 1 | 2, 3"."""
    texts = []
    for part in parts:
        names = [clients[i] for i in part]
        texts.append(_join(names, ", "))
    return _join(texts, " | ")


def _index_by_reference(clients: Sequence[str]) -> dict[int | str, int]:
    """Return the index of each client by its name and by its number.

    If all names are decimal, as a partition assigns them, a client's number is its name: "07" is 7.
    Otherwise it is the index.
    """
    names_are_numbers = all(client.isdecimal() for client in clients)
    by_reference: dict[int | str, int] = {}
    for i, client in enumerate(clients):
        by_reference[client] = i
        by_reference[int(client) if names_are_numbers else i] = i
    return by_reference


def _join(words: Sequence[str], separator: str) -> str:
    """Join the first words; an ellipsis replaces the rest."""
    shown = list(words[:MAX_LISTED])
    if len(words) > MAX_LISTED:
        shown.append("…")
    return separator.join(shown)


def metropolis(
    peers: Sequence[str], edges: Iterable[tuple[str, str]]
) -> dict[str, dict[str, float]]:
    """Return each peer's weights of itself and of its neighbours among `peers`.

    Edges to clients that are not in `peers` are ignored.
    """
    neighbours: dict[str, list[str]] = {peer: [] for peer in peers}
    for a, b in edges:
        if a in neighbours and b in neighbours:
            neighbours[a].append(b)
            neighbours[b].append(a)
    mixing = {}
    for peer, others in neighbours.items():
        weights = {}
        for other in others:
            weights[other] = 1 / (1 + max(len(others), len(neighbours[other])))
        mixing[peer] = {peer: 1 - math.fsum(weights.values())} | weights
    return mixing


def components(count: int, edges: Iterable[Edge]) -> list[list[int]]:
    """Return the connected components of a graph over 0 … count − 1, each in order."""
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for i, j in edges:
        neighbours[i].append(j)
        neighbours[j].append(i)
    parts = []
    visited = [False] * count
    for first in range(count):
        if visited[first]:
            continue
        visited[first] = True
        part = [first]
        for i in part:  # the list grows during the loop
            for j in neighbours[i]:
                if not visited[j]:
                    visited[j] = True
                    part.append(j)
        parts.append(sorted(part))
    return parts


@lru_cache(maxsize=8)  # the graph is the same in every round
def _draw_connected(count: int, p: float, seed: int) -> tuple[Edge, ...]:
    """Return the edges of the first connected random graph."""
    random = generator(seed, "graph")
    pairs = torch.triu_indices(count, count, 1)
    for _ in range(MAX_DRAWS):
        drawn = pairs[:, torch.rand(pairs.shape[1], generator=random) < p]
        edges = tuple(zip(*drawn.tolist(), strict=True))
        if len(components(count, edges)) == 1:
            return edges
    raise ConfigError(
        f"{MAX_DRAWS:,} random graphs of {count} peers with topology.p = {p:g} were drawn, and "
        "each leaves some peers unconnected: set a larger topology.p"
    )
