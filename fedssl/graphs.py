"""Peers without a server: each is its own site, and merges its upload with those of its neighbours in a graph.

Weights are Metropolis's: 1 / (1 + max(dᵢ, dⱼ)) between neighbours of dᵢ and dⱼ neighbours each, and what is left of 1
for a peer's own upload. Rows and columns then sum to 1, so that merging alone would lead every peer to the plain mean
of all (Xiao, Boyd & Lall, "Distributed average consensus with least-mean-square deviation", JPDC 2007).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from typing import ClassVar

import torch
from pydantic import Field

from fedssl.errors import ConfigError
from fedssl.seeds import generator
from fedssl.topology import MEAN, TOPOLOGIES, Plan, Topology, taking_part

TRIES = 1000  # draws of a random graph before it is given up
NAMED = 5  # parts of a graph that fell apart, and members of each, that are named

Edge = tuple[int, int]  # two peers, by their place in the clients' order


class Graph(Topology, ABC):
    """Each round a random share of the peers takes part, at least one; the others neither train nor merge.

    Who takes part merges with those of its neighbours that do, weighed as if there were no others.
    """

    has_server: ClassVar[bool] = False
    consensus: ClassVar[bool] = True
    participation: float = Field(1.0, gt=0, le=1)  # share of the peers that take part in a round, drawn at random

    def sites(self, clients: Sequence[str]) -> list[str]:
        return list(clients)

    def plan(self, clients: Sequence[str], round: int, seed: int) -> Plan:
        if MEAN in clients:
            raise ConfigError(f'no client can be called "{MEAN}" here: that is the mean of all peers\' models')
        edges = self.edges_between(clients, seed)
        chosen = taking_part(clients, self.participation, round, seed)
        return Plan({c: c for c in chosen}, metropolis(chosen, [(clients[i], clients[j]) for i, j in edges]))

    @abstractmethod
    def edges_between(self, clients: Sequence[str], seed: int) -> Iterable[Edge]:
        """Each edge of the graph over all clients once; the same in every round."""


@TOPOLOGIES.register("cycle")
class Cycle(Graph):
    """No server: each peer merges with the one before and the one after it, and the last with the first."""

    def edges_between(self, clients: Sequence[str], seed: int) -> Iterable[Edge]:
        count = len(clients)
        return [(i, i + 1) for i in range(count - 1)] + ([(0, count - 1)] if count > 2 else [])


@TOPOLOGIES.register("complete")
class Complete(Graph):
    """No server: each peer merges with all others, so that all end a round with the plain mean."""

    def edges_between(self, clients: Sequence[str], seed: int) -> Iterable[Edge]:
        return combinations(range(len(clients)), 2)


@TOPOLOGIES.register("tree")
class BinaryTree(Graph):
    """No server: the peers form a binary tree, level by level; peer k > 0 is a child of peer (k - 1) // 2."""

    def edges_between(self, clients: Sequence[str], seed: int) -> Iterable[Edge]:
        return [((k - 1) // 2, k) for k in range(1, len(clients))]


@TOPOLOGIES.register("random")
class RandomGraph(Graph):
    """No server: any two peers are neighbours with probability `p` (Erdős-Rényi), throughout the run.

    The graph is drawn from the run's seed, again and again until it is connected.
    """

    p: float = Field(0.7, gt=0, le=1)  # probability of an edge; Dec-SSL has 0.7

    def edges_between(self, clients: Sequence[str], seed: int) -> Iterable[Edge]:
        return _drawn(len(clients), self.p, seed)


@TOPOLOGIES.register("edges")
class Edges(Graph):
    """No server: neighbours are those listed. All clients that have images must be reached."""

    edges: tuple[tuple[int | str, int | str], ...]  # pairs of clients, by name or, counted from 0, by number

    def edges_between(self, clients: Sequence[str], seed: int) -> Iterable[Edge]:
        place: dict[int | str, int] = {client: i for i, client in enumerate(clients)}
        dealt = all(client.isdecimal() for client in clients)  # a partition's own names: "07" is number 7
        place |= {int(client) if dealt else i: i for i, client in enumerate(clients)}
        edges = set()
        for a, b in self.edges:
            if a not in place or b not in place:
                raise ConfigError(f"topology.edges: there is no client {b if a in place else a!r} that has images")
            if place[a] == place[b]:
                raise ConfigError(f"topology.edges: client {a!r} cannot be its own neighbour")
            edges.add((min(place[a], place[b]), max(place[a], place[b])))
        parts = components(len(clients), edges)
        if len(parts) > 1:
            named = [_listed([clients[i] for i in part], ", ") for part in parts]
            raise ConfigError(f"topology.edges: the graph falls into {len(parts)} parts: {_listed(named, ' | ')}")
        return sorted(edges)


def _listed(words: Sequence[str], between: str) -> str:
    return between.join([*words[:NAMED], *(["…"] if len(words) > NAMED else [])])


def metropolis(peers: Sequence[str], edges: Iterable[tuple[str, str]]) -> dict[str, dict[str, float]]:
    """Each peer's weights of itself and of its neighbours among `peers`; edges to anybody else do not count."""
    near: dict[str, list[str]] = {peer: [] for peer in peers}
    for a, b in edges:
        if a in near and b in near:
            near[a].append(b)
            near[b].append(a)
    mixing = {}
    for peer, others in near.items():
        weights = {other: 1 / (1 + max(len(others), len(near[other]))) for other in others}
        mixing[peer] = {peer: 1 - math.fsum(weights.values())} | weights
    return mixing


def components(count: int, edges: Iterable[Edge]) -> list[list[int]]:
    """The connected parts of a graph over 0 … count − 1, each in order."""
    near: list[list[int]] = [[] for _ in range(count)]
    for i, j in edges:
        near[i].append(j)
        near[j].append(i)
    found, seen = [], [False] * count
    for first in range(count):
        if seen[first]:
            continue
        seen[first], part = True, [first]
        for i in part:  # grows while it is walked
            fresh = [j for j in near[i] if not seen[j]]
            for j in fresh:
                seen[j] = True
            part += fresh
        found.append(sorted(part))
    return found


@lru_cache(maxsize=8)  # the same in every round
def _drawn(count: int, p: float, seed: int) -> tuple[Edge, ...]:
    random = generator(seed, "graph")
    pairs = torch.triu_indices(count, count, 1)
    for _ in range(TRIES):
        kept = pairs[:, torch.rand(pairs.shape[1], generator=random) < p]
        edges = tuple((int(i), int(j)) for i, j in kept.T.tolist())
        if len(components(count, edges)) == 1:
            return edges
    raise ConfigError(
        f"none of {TRIES:,} random graphs of {count} peers with p = {p:g} was connected: take a larger topology.p"
    )
