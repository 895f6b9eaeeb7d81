"""The kNN probe, against loops and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedssl.probes import Labelled, knn_predict


def random_set(n: int, seed: int, classes: int = 4, dim: int = 5) -> Labelled:
    stream = torch.Generator().manual_seed(seed)
    features = torch.randn(n, dim, generator=stream)
    return Labelled(features, torch.randint(classes, (n,), generator=stream))


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def slow_predict(train: Labelled, query: list[float], k: int, temperature: float) -> int:
    neighbours = []
    for row, label in zip(train.features.tolist(), train.labels.tolist(), strict=True):
        neighbours.append((cosine(row, query), label))
    votes: dict[int, float] = {}
    for similarity, label in sorted(neighbours, reverse=True)[:k]:
        votes[label] = votes.get(label, 0.0) + math.exp(similarity / temperature)
    return max(votes, key=lambda label: votes[label])


@given(
    st.integers(1, 40),
    st.integers(1, 60),
    st.sampled_from([0.005, 0.05, 0.1, 1.0]),
    st.integers(0, 99),
)
def test_against_loops(n: int, k: int, temperature: float, seed: int) -> None:
    """Also with k larger than the number of neighbours, and queries in several batches."""
    train = random_set(n, seed)
    queries = random_set(9, seed + 1).features
    predictions = knn_predict(train, queries, k, temperature, batch=4)
    expected = [slow_predict(train, query, k, temperature) for query in queries.tolist()]
    assert predictions.tolist() == expected


def test_the_length_of_a_feature_does_not_matter() -> None:
    train = random_set(50, 0)
    queries = random_set(30, 1).features
    scaled = Labelled(train.features * torch.rand(50, 1).add(0.1), train.labels)
    predictions = knn_predict(train, queries, 10, 0.1)
    assert torch.equal(predictions, knn_predict(scaled, 7 * queries, 10, 0.1))


def test_a_low_temperature_favours_the_nearest_neighbours() -> None:
    """Similarities 1, 0.8, 0.8: e^(1/t) > 2·e^(0.8/t) at t = 0.1 (e² > 2), not at 1 (e^0.2 < 2)."""
    train = Labelled(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.8, -0.6]]), torch.tensor([0, 1, 1]))
    query = torch.tensor([[1.0, 0.0]])
    assert knn_predict(train, query, 3, 0.1).tolist() == [0]
    assert knn_predict(train, query, 3, 1.0).tolist() == [1]


def test_separate_classes_are_predicted() -> None:
    labels = torch.arange(40) % 4
    noise = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    features = torch.eye(4)[labels] + 0.01 * noise
    train = Labelled(features[:20], labels[:20])
    assert torch.equal(knn_predict(train, features[20:], 3, 0.1), labels[20:])


def test_a_class_without_images_is_never_predicted() -> None:
    train = Labelled(torch.eye(3), torch.tensor([0, 3, 3]))
    assert knn_predict(train, torch.eye(3), 1, 0.1).tolist() == [0, 3, 3]


def test_random_features_give_chance_accuracy() -> None:
    test = random_set(800, 1)
    right = knn_predict(random_set(800, 0), test.features, 20, 0.1) == test.labels
    assert float(right.double().mean()) == pytest.approx(0.25, abs=0.06)
