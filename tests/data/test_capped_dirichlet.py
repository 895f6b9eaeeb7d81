"""Dirichlet partitions with the cap of the authors' samplers (Dec-SSL, EasyFL), and a share of
each client's images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from client_parts import as_lists, has_fewer_at_each_client, seeded, sizes
from error_messages import raises
from test_class_partition import balanced, counts

from fedssl.core.errors import ConfigError
from fedssl.core.settings import validate
from fedssl.data import (
    Clusters,
    Dirichlet,
    Partition,
    Rotation,
    Skew,
    earth_movers_distance,
    histogram,
)
from fedssl.data.class_partition import draw_ends, has_even_sizes
from fedssl.data.partition import numpy_generator

CIFAR10 = np.full(10, 5000)


def plain_draw(
    counts: list[int], clients: int, alpha: float, random: np.random.Generator
) -> list[list[int]]:
    """Return the images of each class at each client (K, C), dealt one class after the other."""
    table: list[list[int]] = [[] for _ in range(clients)]
    for count in counts:
        shares = random.dirichlet([alpha] * clients)
        for k in range(clients):
            if sum(table[k]) >= sum(counts) / clients:
                shares[k] = 0.0
        if shares.sum() == 0:
            return []
        cumulative = np.cumsum(shares / shares.sum())
        given = 0
        for k in range(clients):
            end = count if k == clients - 1 else int(cumulative[k] * count)
            table[k].append(end - given)
            given = end
    return table


@pytest.mark.parametrize(("clients", "alpha"), [(5, 1.0), (5, 0.02), (10, 0.1), (3, 5.0)])
def test_a_capped_partition_is_that_of_a_plain_loop(clients: int, alpha: float) -> None:
    """The first of all draws in which every client has 0.5 to 1.5 times N/K images."""
    data = balanced(10, 101)
    for seed in range(3):
        stream = seeded(seed)
        torch.randperm(len(data.train), generator=stream)  # shuffles the images
        random = numpy_generator(stream)
        while True:
            table = plain_draw([101] * 10, clients, alpha, random)
            if table and all(505 / clients <= sum(row) <= 1515 / clients for row in table):
                break
        assert counts(Dirichlet(alpha=alpha, capped=True), data, clients, seed).tolist() == table


def test_a_client_at_the_cap_gets_nothing_of_the_next_classes() -> None:
    """Before its last class, no client holds N/K images; without the cap, some does.

    The last client may get one image more, the one that truncation leaves over.
    """
    ends = []
    for capped in (True, False):
        random = np.random.default_rng(1)
        draws = [draw_ends(CIFAR10, 5, 0.5, capped=capped, random=random) for _ in range(50)]
        ends.append([drawn for drawn in draws if drawn is not None])
    over = []
    for drawn in ends:
        held = np.stack([np.diff(cuts, prepend=0) for cuts in drawn])  # (draws, C, K)
        before = held.cumsum(1) - held
        over.append(bool(((before >= 10_000) & (held > 1)).any()))
    assert over == [False, True]


def accepted(clients: int, alpha: float, capped: bool) -> int:
    """Return how many of 1,000 draws on CIFAR-10 give clients 0.5 to 1.5 times N/K images."""
    random = np.random.default_rng(0)
    number = 0
    for _ in range(1000):
        ends = draw_ends(CIFAR10, clients, alpha, capped=capped, random=random)
        number += ends is not None and has_even_sizes(ends)
    return number


@pytest.mark.parametrize(
    ("clients", "alpha", "free", "capped"),
    [
        (5, 0.02, (90, 175), (500, 700)),
        (10, 0.1, (0, 5), (15, 80)),
        (10, 0.02, (0, 0), (1, 30)),
        (10, 0.01, (0, 0), (1, 30)),
        (20, 0.1, (0, 0), (0, 0)),
        (20, 0.02, (0, 0), (0, 0)),
        (100, 1.0, (0, 0), (15, 90)),
    ],
)
def test_acceptance(
    clients: int, alpha: float, free: tuple[int, int], capped: tuple[int, int]
) -> None:
    """An earlier count without the cap accepted 132, 1, –, –, –, 0 and 0 of 1,000 draws.

    With the cap, ten clients are accepted at every α and a hundred at α = 1, but twenty at neither
    0.1 nor 0.02. Intervals are more than three standard deviations wide on either side.
    """
    assert free[0] <= accepted(clients, alpha, capped=False) <= free[1]
    assert capped[0] <= accepted(clients, alpha, capped=True) <= capped[1]


@pytest.mark.parametrize("alpha", [5.0, 1.0, 0.5, 0.1, 0.02, 0.01])
def test_ten_clients_are_accepted_at_every_alpha(alpha: float) -> None:
    table = counts(Dirichlet(alpha=alpha, capped=True), balanced(10, 500), 10)
    assert table.sum(0).tolist() == [500] * 10
    assert int(table.sum(1).min()) >= 250
    assert int(table.sum(1).max()) <= 750


def test_twenty_clients_of_a_small_alpha_are_refused_with_the_way_out() -> None:
    with raises(ConfigError):
        Dirichlet(alpha=0.02, capped=True).split(balanced(10, 100), 20, seeded())


@pytest.mark.parametrize(
    ("alpha", "published"), [(5, 0.29), (1, 0.77), (0.5, 0.97), (0.1, 1.27), (0.01, 1.57)]
)
def test_the_published_distance_is_a_usual_one(alpha: float, published: float) -> None:
    """Dec-SSL's Figure 17 prints the distance of one draw for each α, K = 5, on CIFAR-10.

    It is within 1.5 standard deviations of capped draws; without the cap, that of α = 1 is not
    within two.
    """
    away = {}
    for capped in (True, False):
        random = np.random.default_rng(0)
        distances = []
        while len(distances) < 200:
            ends = draw_ends(CIFAR10, 5, alpha, capped=capped, random=random)
            if ends is not None and has_even_sizes(ends):
                table = torch.from_numpy(np.diff(ends, prepend=0).T.copy())
                distances.append(earth_movers_distance(table))
        away[capped] = abs(published - np.mean(distances)) / np.std(distances)
    assert away[True] < 1.5
    if alpha == 1:
        assert away[False] > 2


@pytest.mark.parametrize("partition", [Dirichlet, Clusters])
def test_a_cap_and_equal_sizes_exclude_each_other(partition: type[Dirichlet | Clusters]) -> None:
    with raises(ConfigError):
        validate(partition, {"alpha": 1, "capped": True, "balanced": True}, "partition")


# -- a share of a client's images --


@pytest.mark.parametrize("rule", [{}, {"capped": True}, {"balanced": True}], ids=str)
def test_the_last_classes_of_a_client_are_dropped(rule: dict[str, bool]) -> None:
    """A client that holds (a, b, c) of three classes keeps the first 80%, class by class."""
    data = balanced(3, 200)
    whole = counts(Dirichlet(alpha=2, **rule), data, 4, 5).tolist()
    whole_parts = Dirichlet(alpha=2, **rule).split(data, 4, seeded(5))
    parts = Dirichlet(alpha=2, share=0.8, **rule).split(data, 4, seeded(5))
    assert has_fewer_at_each_client(parts, whole_parts)
    kept = histogram(parts, data.train.labels, 3).tolist()
    for row, all_of_row in zip(kept, whole, strict=True):
        left = round(0.8 * sum(all_of_row))
        for number, all_of_class in zip(row, all_of_row, strict=True):
            assert number == min(left, all_of_class)
            left -= number


def test_the_uniform_part_of_a_skewed_client_is_dropped_first() -> None:
    """β = 0.1 and 80%: all that is kept is of the client's block, as with β = 0."""
    data = balanced(10, 100)
    kept = Skew(beta=0.1, share=0.8).split(data, 5, seeded())
    assert has_fewer_at_each_client(kept, Skew(beta=0.1).split(data, 5, seeded()))
    assert sizes(kept) == [160] * 5
    table = histogram(kept, data.train.labels, 10)
    # Classes differ in number within the 90%, so that a block may begin in the class before.
    assert int((table > 0).sum(1).max()) <= 3
    assert earth_movers_distance(table) > 1.5
    half = histogram(Skew(beta=0.6, share=0.8).split(data, 5, seeded()), data.train.labels, 10)
    assert (half > 0).all()


def test_clusters_and_shifted_images_have_shares_too() -> None:
    data = balanced(10, 20)
    whole = Rotation().split(data, 4, seeded())
    part = Rotation(share=0.8).split(data, 4, seeded())
    assert has_fewer_at_each_client(part, whole)
    assert sizes(part) == [40] * 4
    rule = Clusters(alpha=0.5, capped=True, share=0.6).rule
    assert rule == Dirichlet(alpha=0.5, capped=True, share=0.6)


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (Dirichlet(alpha=1), [[1, 4, 10], [0, 2, 3, 6, 9, 11], [5, 7, 8]]),
        (Dirichlet(alpha=1, balanced=True), [[1, 2, 7, 10], [0, 3, 6, 9], [4, 5, 8, 11]]),
        (Skew(beta=0.5), [[0, 3, 9, 10], [1, 2, 6, 7], [4, 5, 8, 11]]),
        (Rotation(), [[1, 6, 9, 10], [3, 4, 7, 11], [0, 2, 5, 8]]),
    ],
)
def test_the_defaults_are_the_partitions_before_there_was_a_cap(
    partition: Partition, expected: list[list[int]]
) -> None:
    assert list(as_lists(partition.split(balanced(3, 4), 3, seeded(3))).values()) == expected
