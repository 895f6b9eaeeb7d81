"""Plans of topologies: participation, the sites of each upload, and its weights."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedssl.topologies.graphs  # noqa: F401 - registers its own
from fedssl.topologies.topology import SERVER, TOPOLOGIES, Centralized, Isolated, Plan, Star

CLIENTS = [f"c{i:02}" for i in range(20)]


@pytest.mark.parametrize("name", TOPOLOGIES.names())
@given(n=st.integers(1, 30), round=st.integers(0, 99), seed=st.integers(0, 5))
def test_every_plan_is_valid(name: str, n: int, round: int, seed: int) -> None:
    """Clients that take part have a home among the sites, feed at least one site, and are in
    order."""
    clients = [f"{i:02}" for i in range(n)]
    topology = TOPOLOGIES[name](
        **({"edges": [(i, i + 1) for i in range(n - 1)]} if name == "edges" else {})
    )
    plan = topology.plan(clients, round, seed)
    assert list(plan.site_of) == sorted(plan.site_of)
    assert set(plan.site_of) <= set(clients)
    assert set(plan.site_of.values()) <= set(plan.sites) <= set(topology.sites(clients))
    assert set().union(*plan.mixing.values()) == set(plan.site_of)
    assert topology.plan(clients, round, seed) == plan


@given(st.integers(1, 200), st.floats(0.001, 1))
def test_a_round_of_the_right_size(n: int, participation: float) -> None:
    chosen = Star(participation=participation).plan([str(i) for i in range(n)], 0, 0).site_of
    assert len(chosen) == max(1, math.floor(participation * n + 0.5))


def test_participation_is_reproducible_and_differs_by_round_and_seed() -> None:
    def chosen(round: int, seed: int) -> tuple[str, ...]:
        return tuple(Star(participation=0.5).plan(CLIENTS, round, seed).site_of)

    plans = [chosen(round, seed) for seed in range(3) for round in range(20)]
    assert plans == [chosen(round, seed) for seed in range(3) for round in range(20)]
    assert len(set(plans)) == 60


def test_clients_are_sampled_uniformly() -> None:
    """Of 20 clients 4 are drawn 200 times: each about 40 times, ± 5 standard deviations of a
    binomial."""
    turns = dict.fromkeys(CLIENTS, 0)
    for round in range(200):
        for client in Star(participation=0.2).plan(CLIENTS, round, 7).site_of:
            turns[client] += 1
    assert sum(turns.values()) == 800
    assert all(abs(count - 40) < 5 * math.sqrt(200 * 0.2 * 0.8) for count in turns.values())


def test_all_clients_take_part_by_default() -> None:
    plan = Star().plan(CLIENTS, 3, 0)
    assert plan == Plan(dict.fromkeys(CLIENTS, SERVER), {SERVER: dict.fromkeys(CLIENTS)})


def test_isolated_clients_merge_only_their_own_upload() -> None:
    topology = Isolated()
    plan = topology.plan(CLIENTS, 0, 0)
    assert topology.sites(CLIENTS) == CLIENTS
    assert not topology.has_server
    assert plan.site_of == {c: c for c in CLIENTS}
    assert plan.mixing == {c: {c: 1.0} for c in CLIENTS}


def test_centralized_pools_all_images() -> None:
    parts = {
        "a": torch.tensor([5, 1]),
        "b": torch.tensor([], dtype=torch.int64),
        "c": torch.tensor([3, 0]),
    }
    owners = Centralized().owners(parts)
    assert {client: index.tolist() for client, index in owners.items()} == {"all": [0, 1, 3, 5]}
    assert Centralized().plan(["all"], 4, 0).site_of == {"all": SERVER}
    assert Star().owners(parts) is parts


def test_weights_by_size_uniform_and_fixed() -> None:
    plan = Plan({}, {"server": {"a": None, "c": None}, "peer": {"a": 0.25, "b": 0.75}})
    assert [
        plan.weight("server", client, images, "size") for client, images in (("a", 3), ("c", 7))
    ] == [3.0, 7.0]
    assert [
        plan.weight("server", client, images, "uniform") for client, images in (("a", 3), ("c", 7))
    ] == [1.0, 1.0]
    for weights in ("size", "uniform"):
        assert [plan.weight("peer", client, 5, weights) for client in "ab"] == [0.25, 0.75]
