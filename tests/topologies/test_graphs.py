"""Peers without a server: their graphs, the weights they merge with, and their convergence."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
from error_messages import raises
from factories import make_trainer, random_pixels, train_rounds
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fedssl.methods  # noqa: F401 - registers its own
from fedssl.algorithms import FedAvg
from fedssl.core.errors import ConfigError
from fedssl.core.state.tree import model
from fedssl.engine.federate import Round
from fedssl.engine.uploads.records import Candidate, Reply
from fedssl.engine.uploads.routing import Routing
from fedssl.engine.uploads.upload_weights import UploadWeights
from fedssl.topologies.graphs import (
    BinaryTree,
    Complete,
    Cycle,
    Edges,
    Graph,
    RandomGraph,
    components,
    metropolis,
)
from fedssl.topologies.topology import Star, Topology

KINDS: dict[str, Callable[[float], Graph]] = {
    "cycle": lambda share: Cycle(participation=share),
    "complete": lambda share: Complete(participation=share),
    "tree": lambda share: BinaryTree(participation=share),
    "random": lambda share: RandomGraph(participation=share, p=0.7),
}


def named(count: int) -> list[str]:
    return [f"{i:02}" for i in range(count)]


def matrix(mixing: Mapping[str, Mapping[str, float | None]]) -> Tensor:
    """(n, n): row i has the weights at site i."""
    peers = list(mixing)
    return torch.tensor(
        [[mixing[i].get(j) or 0.0 for j in peers] for i in peers], dtype=torch.float64
    )


@pytest.mark.parametrize("kind", KINDS)
@given(
    n=st.integers(1, 25), share=st.floats(0.01, 1), round=st.integers(0, 50), seed=st.integers(0, 5)
)
def test_weights_are_symmetric_and_doubly_stochastic(
    kind: str, n: int, share: float, round: int, seed: int
) -> None:
    plan = KINDS[kind](share).plan(named(n), round, seed)
    weights = matrix(plan.mixing)
    ones = torch.ones(len(weights), dtype=torch.float64)
    assert torch.allclose(weights.sum(0), ones, atol=1e-12)
    assert torch.allclose(weights.sum(1), ones, atol=1e-12)
    assert torch.equal(weights, weights.T)
    assert (weights.diagonal() > 0).all()
    assert list(plan.mixing) == list(plan.site_of) == list(plan.site_of.values())


def test_weights_of_a_path_by_hand() -> None:
    """a - b - c: b has two neighbours, so both edges weigh 1/3, and a and c keep weight 2/3."""
    assert metropolis("abc", [("a", "b"), ("b", "c"), ("c", "x")]) == {
        "a": {"a": pytest.approx(2 / 3), "b": 1 / 3},
        "b": {"b": pytest.approx(1 / 3), "a": 1 / 3, "c": 1 / 3},
        "c": {"c": pytest.approx(2 / 3), "b": 1 / 3},
    }
    # Without b, no neighbour is left to merge with.
    assert metropolis("ac", [("a", "b"), ("b", "c")]) == {"a": {"a": 1.0}, "c": {"c": 1.0}}


def test_edges_by_hand() -> None:
    seven = named(7)
    assert list(Cycle().edges_between(named(4), 0)) == [(0, 1), (1, 2), (2, 3), (0, 3)]
    assert list(Complete().edges_between(named(3), 0)) == [(0, 1), (0, 2), (1, 2)]
    assert list(BinaryTree().edges_between(seven, 0)) == [
        (0, 1),
        (0, 2),
        (1, 3),
        (1, 4),
        (2, 5),
        (2, 6),
    ]
    assert Cycle().plan(named(2), 0, 0) == Complete().plan(named(2), 0, 0)
    assert Cycle().plan(named(3), 0, 0) == Complete().plan(named(3), 0, 0)
    assert RandomGraph(p=1).plan(seven, 0, 0) == Complete().plan(seven, 0, 0)


@given(n=st.integers(1, 20), p=st.floats(0.35, 1), seed=st.integers(0, 20))
def test_a_random_graph_is_connected_and_the_seeds(n: int, p: float, seed: int) -> None:
    graph = RandomGraph(p=p)
    edges = list(graph.edges_between(named(n), seed))
    assert len(components(n, edges)) == 1
    assert all(i < j for i, j in edges)
    assert graph.plan(named(n), 0, seed) == graph.plan(named(n), 7, seed)


def test_random_graphs_differ_by_seed_and_have_their_share_of_edges() -> None:
    """Of 190 pairs 133 are neighbours on average, ± 5 standard deviations of a binomial over 20
    graphs."""
    graphs = [tuple(RandomGraph().edges_between(named(20), seed)) for seed in range(20)]
    assert len(set(graphs)) == 20
    assert abs(sum(map(len, graphs)) - 20 * 133) < 5 * (20 * 190 * 0.7 * 0.3) ** 0.5
    with raises(ConfigError):
        RandomGraph(p=0.01).plan(named(20), 0, 0)


def test_listed_edges_by_name_and_by_number() -> None:
    # Clients with the numbers between these have no images.
    a = "0007"
    b = "0008"
    c = "0010"
    by_number = Edges(edges=((7, 8), (10, 8), (8, 7))).plan([a, b, c], 0, 0)
    assert by_number == Edges(edges=((a, b), (b, c))).plan([a, b, c], 0, 0)
    assert by_number.mixing[b] == {b: pytest.approx(1 / 3), a: 1 / 3, c: 1 / 3}
    assert Edges(edges=((0, 1),)).plan(["north", "south"], 0, 0).mixing["north"] == {
        "north": 0.5,
        "south": 0.5,
    }


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (((0, 1), (2, 3)), r"2 separate parts \(0, 1 \| 2, 3\)"),
        ((), r"4 separate parts \(0 \| 1 \| 2 \| 3\)"),
        (
            ((0, 1), (1, 4)),
            "client 4, which does not exist or has no images; clients with images: 0, 1",
        ),
        (((0, 1), ("north", 1)), "client 'north', which does not exist or has no images"),
        (((1, 1),), "an edge from client 1 to itself"),
    ],
)
def test_invalid_edges(edges: tuple[tuple[int | str, int | str], ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Edges(edges=edges).plan(list("0123"), 0, 0)


def test_no_peer_can_be_called_mean() -> None:
    with raises(ConfigError):
        Cycle().plan(["mean", "other"], 0, 0)


def test_unselected_peers_neither_train_nor_merge() -> None:
    """The clients that take part are those that would take part with a server."""
    for round in range(20):
        plan = Cycle(participation=0.5).plan(named(10), round, 3)
        assert list(plan.site_of) == list(Star(participation=0.5).plan(named(10), round, 3).site_of)
        assert set(plan.sites) == set(plan.site_of)
        assert set().union(*plan.mixing.values()) == set(plan.site_of)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_merging_without_training_converges_to_the_mean(kind: str, share: float) -> None:
    """The mean of all stays constant, and all converge to it; a cycle of 8 shrinks the distance by
    0.805 a round."""
    x = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = x.mean(0)
    peers = named(8)
    for round in range(1500):
        plan = KINDS[kind](share).plan(peers, round, 0)
        mine = [peers.index(peer) for peer in plan.sites]
        x[mine] = matrix(plan.mixing) @ x[mine]
        assert torch.allclose(x.mean(0), mean, atol=1e-12)
    assert torch.allclose(x, mean.expand(8, 3), atol=1e-6)


Go = Callable[..., list[Round]]


@pytest.fixture
def go() -> Go:
    def run(topology: Topology, peers: int, method: str = "byol", rounds: int = 3) -> list[Round]:
        shards = {name: random_pixels(8, seed) for seed, name in enumerate(named(peers))}
        return train_rounds(
            FedAvg(), shards, make_trainer(method), rounds=rounds, topology=topology
        )

    return run


@pytest.mark.parametrize("method", ["byol", "mocov2"])
def test_a_complete_graph_of_equal_clients_equals_a_server(method: str, go: Go) -> None:
    graph = go(Complete(), 4, method)
    star = go(Star(), 4, method)
    for one, other in zip(graph, star, strict=True):
        (server,) = other.sites.values()
        for site in one.sites.values():
            assert torch.allclose(
                model(site, "model").floats, model(server, "model").floats, atol=1e-6
            )
            assert torch.equal(model(site, "model").counts, model(server, "model").counts)


def test_unselected_peers_of_a_cycle_keep_their_model(go: Go) -> None:
    done = go(Cycle(), 5, rounds=1)[-1]
    assert len({tuple(model(site, "model").floats.tolist()) for site in done.sites.values()}) == 5
    half = Cycle(participation=0.5)
    first, second = go(half, 5, rounds=2)
    moved = {name for name in second.sites if second.sites[name] is not first.sites[name]}
    assert moved == set(half.plan(named(5), 1, 0).site_of)


class Sent(dict[str, float]):
    """An upload that supports weak references."""


@pytest.mark.parametrize("peers", [10, 40, 160])
def test_a_cycle_of_any_length_holds_at_most_five_uploads(peers: int) -> None:
    """The first two wait for the last peer, which closes the cycle; so do the last three."""
    alive: set[int] = set()
    peak = 0

    def received() -> Iterator[Candidate]:
        nonlocal peak
        for name in named(peers):
            sent = Sent()
            alive.add(id(sent))
            weakref.finalize(sent, alive.discard, id(sent))
            peak = max(peak, len(alive))
            yield Candidate(Reply(name, 1, sent, None), error=None)
            del sent

    plan = Cycle().plan(named(peers), 0, 0)
    merged = [
        site
        for site, uploads in Routing(plan, received(), UploadWeights(plan, "size"))
        if list(uploads)
    ]
    assert sorted(merged) == sorted(named(peers))
    assert peak <= 6  # five that wait, and one that was just received
    assert not alive
