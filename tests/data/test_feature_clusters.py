"""Feature clusters: k-means finds planted groups, and clients differ by them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from client_parts import all_indices, as_lists, seeded, sizes
from error_messages import raises
from torch import Tensor

from fedssl import nets
from fedssl.core.errors import ConfigError
from fedssl.data import Clusters, Dataset, Images, earth_movers_distance, histogram
from fedssl.data.feature_clusters import kmeans, principal_components


def same_groups(one: Tensor, other: Tensor) -> bool:
    """True if two assignments to groups differ only in the groups' numbers."""
    pairs = set(zip(one.tolist(), other.tolist(), strict=True))
    return len(pairs) == len(one.unique()) == len(other.unique())


def planted(kinds: int, each: int, side: int = 20) -> Dataset:
    """Return noisy copies of a few random patterns; reading the labels is an error."""
    patterns = torch.randint(200, (kinds, 1, side, side), generator=seeded(7))
    kind = torch.arange(kinds * each) % kinds
    noise = torch.randint(50, (len(kind), 1, side, side), generator=seeded(8))

    def never() -> Tensor:
        raise AssertionError("labels were loaded")

    return Dataset(Images((patterns[kind] + noise).to(torch.uint8), never))


@pytest.mark.parametrize("seed", range(5))
def test_kmeans_finds_planted_clusters(seed: int) -> None:
    kind = torch.arange(600) % 6
    centres = 10 * torch.eye(6, 8, dtype=torch.float64)
    points = centres[kind] + torch.randn(600, 8, dtype=torch.float64, generator=seeded(seed))
    found = kmeans(points, 6, seeded(seed))
    assert same_groups(found, kind)
    assert found.equal(kmeans(points, 6, seeded(seed)))


def test_kmeans_of_points_that_coincide() -> None:
    assert kmeans(torch.ones(9, 2, dtype=torch.float64), 3, seeded()).shape == (9,)
    apart = torch.arange(5.0, dtype=torch.float64)[:, None]
    assert sorted(kmeans(apart, 5, seeded()).tolist()) == [0, 1, 2, 3, 4]


def test_main_directions_are_those_of_an_svd() -> None:
    """Up to signs: the first columns of U·S of the centred features, by falling variance."""
    features = torch.randn(700, 12, generator=seeded()) * torch.arange(12, 0, -1) + 3
    u, s, _ = torch.linalg.svd((features - features.mean(0)).double(), full_matrices=False)
    assert torch.allclose(principal_components(features, 5).abs(), (u * s)[:, :5].abs(), atol=1e-4)
    assert principal_components(features, 30).shape == (700, 12)


def test_images_that_look_alike_stay_together() -> None:
    """With a tiny alpha and as many clients as kinds, most clients hold one or two kinds."""
    data = planted(5, 60)
    kind = torch.arange(300) % 5
    parts = Clusters(alpha=0.01, balanced=True, clusters=5).split(data, 5, seeded(1))
    assert all_indices(parts) == list(range(300))
    assert sizes(parts) == [60] * 5
    apart = earth_movers_distance(histogram(parts, kind, 5))
    alike = Clusters(alpha=1e6, clusters=5).split(data, 5, seeded(1))
    assert apart > 1
    assert earth_movers_distance(histogram(alike, kind, 5)) < 0.05
    again = Clusters(alpha=0.01, balanced=True, clusters=5).split(data, 5, seeded(1))
    assert as_lists(parts) == as_lists(again)
    other = Clusters(alpha=0.01, balanced=True, clusters=5).split(data, 5, seeded(2))
    assert as_lists(parts) != as_lists(other)


def test_features_of_a_backbone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    backbone = nets.build("cnn", 1).eval()
    nets.save_backbone(backbone.state_dict(), tmp_path / "b.safetensors", {})
    images = planted(3, 4).train
    clusters = Clusters(alpha=1, init=tmp_path / "b.safetensors", backbone="cnn")
    with torch.no_grad():
        assert torch.allclose(clusters.features(images), backbone(images.pixels.float() / 255))
    assert Clusters(alpha=1).features(images).shape == (12, 16 * 16)
    with raises(ConfigError):
        Clusters(alpha=1, init=tmp_path / "none").split(planted(3, 4), 2, seeded())


def test_too_few_images_for_the_clusters() -> None:
    with raises(ConfigError):
        Clusters(alpha=1, clusters=13).split(planted(3, 4), 2, seeded())
