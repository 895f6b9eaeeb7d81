"""Weighted neighbours against loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedssl.probes import Labelled, knn_predict


def random_set(n: int, seed: int, classes: int = 4, dim: int = 5) -> Labelled:
    stream = torch.Generator().manual_seed(seed)
    return Labelled(torch.randn(n, dim, generator=stream), torch.randint(classes, (n,), generator=stream))


def slowly(train: Labelled, query: list[float], k: int, temperature: float) -> int:
    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    near = sorted(
        (
            (cosine(row, query), label)
            for row, label in zip(train.features.tolist(), train.labels.tolist(), strict=True)
        ),
        reverse=True,
    )[:k]
    votes: dict[int, float] = {}
    for similarity, label in near:
        votes[label] = votes.get(label, 0.0) + math.exp(similarity / temperature)
    return max(votes, key=lambda label: votes[label])


@given(st.integers(1, 40), st.integers(1, 60), st.sampled_from([0.005, 0.05, 0.1, 1.0]), st.integers(0, 99))
def test_against_loops(n: int, k: int, temperature: float, seed: int) -> None:
    """Also with more neighbours asked for than there are, and queries in several batches."""
    train, queries = random_set(n, seed), random_set(9, seed + 1).features
    got = knn_predict(train, queries, k, temperature, batch=4)
    assert got.tolist() == [slowly(train, query, k, temperature) for query in queries.tolist()]


def test_the_length_of_a_feature_does_not_matter() -> None:
    train, test = random_set(50, 0), random_set(30, 1)
    scaled = Labelled(train.features * torch.rand(50, 1).add(0.1), train.labels)
    assert torch.equal(knn_predict(train, test.features, 10, 0.1), knn_predict(scaled, 7 * test.features, 10, 0.1))


def test_nearer_neighbours_outvote_more_of_them() -> None:
    """Similarities 1, 0.8, 0.8: e^(1/t) beats 2·e^(0.8/t) at t = 0.1 (e² > 2) and not at t = 1 (e^0.2 < 2)."""
    train = Labelled(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.8, -0.6]]), torch.tensor([0, 1, 1]))
    query = torch.tensor([[1.0, 0.0]])
    assert knn_predict(train, query, 3, 0.1).tolist() == [0]
    assert knn_predict(train, query, 3, 1.0).tolist() == [1]


def test_classes_apart_are_told_apart() -> None:
    labels = torch.arange(40) % 4
    features = torch.eye(4)[labels] + 0.01 * torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(knn_predict(Labelled(features[:20], labels[:20]), features[20:], 3, 0.1), labels[20:])


def test_a_class_nobody_showed_is_never_said() -> None:
    train = Labelled(torch.eye(3), torch.tensor([0, 3, 3]))
    assert knn_predict(train, torch.eye(3), 1, 0.1).tolist() == [0, 3, 3]


def test_chance_stays_chance() -> None:
    test = random_set(800, 1)
    right = knn_predict(random_set(800, 0), test.features, 20, 0.1) == test.labels
    assert float(right.double().mean()) == pytest.approx(0.25, abs=0.06)
