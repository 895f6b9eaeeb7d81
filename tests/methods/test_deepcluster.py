"""Spherical k-means and the loss against loops; the clusters of an epoch reach the right images."""

from __future__ import annotations

import math
import threading

import pytest
import torch
import torch.nn.functional as F
from factories import make_trainer, random_pixels
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fedssl.method import Batch
from fedssl.methods import DeepCluster
from fedssl.methods.deepcluster import cluster_loss, spherical_k_means
from fedssl.training.trainer import TrainingTask


def _units(*shape: int, seed: int = 1) -> Tensor:
    return F.normalize(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def _slow_k_means(rows: Tensor, k: int, iterations: int) -> tuple[list[Tensor], list[int]]:
    centroids = [rows[i * len(rows) // k] for i in range(k)]

    def nearest(row: Tensor) -> int:
        return max(range(k), key=lambda c: (row @ centroids[c]).item())

    for _ in range(iterations):
        clusters = [nearest(row) for row in rows]
        for c in range(k):
            members = [row for row, cluster in zip(rows, clusters, strict=True) if cluster == c]
            if members:
                total = sum(members[1:], members[0])
                centroids[c] = total / total.norm()
    return centroids, [nearest(row) for row in rows]


@pytest.mark.parametrize(("n", "k", "iterations"), [(20, 3, 4), (30, 8, 2), (5, 5, 1), (4, 7, 3)])
def test_k_means_equals_loops(n: int, k: int, iterations: int) -> None:
    """Also with more clusters than images: some centroids are then alike, and the first of them is
    the nearest.
    """
    rows = _units(n, 4)
    centroids, clusters = spherical_k_means(rows, k, iterations)
    slow_centroids, slow_clusters = _slow_k_means(rows, k, iterations)
    torch.testing.assert_close(centroids, torch.stack(slow_centroids))
    if n >= k:
        assert clusters.tolist() == slow_clusters
    torch.testing.assert_close(centroids.norm(dim=1), torch.ones(k))


def test_k_means_finds_separate_clusters() -> None:
    """Three bundles of nearly equal directions."""
    truth = torch.arange(30) % 3
    rows = F.normalize(torch.eye(3)[truth] + 0.1 * _units(30, 3), dim=1)
    _, clusters = spherical_k_means(rows, 3, 10)
    assert len({(a, b) for a, b in zip(truth.tolist(), clusters.tolist(), strict=True)}) == 3


def test_loss_equals_loops() -> None:
    z = 3 * _units(2, 5, 4)
    centroids = _units(6, 4, seed=2)
    clusters = torch.tensor([0, 5, 2, 2, 1])
    losses = []
    for view in range(2):
        for b in range(5):
            powers = [math.exp((z[view, b] / 3 @ c).item() / 0.1) for c in centroids]
            losses.append(-math.log(powers[clusters[b]] / sum(powers)))
    assert cluster_loss(z, centroids, clusters, 0.1).item() == pytest.approx(
        sum(losses) / 10, rel=1e-4
    )


def test_by_hand() -> None:
    """On its own centroid, at a right angle to two others, t = 1: log(e + 2) − 1."""
    z = torch.eye(3).expand(2, 3, 3)
    loss = cluster_loss(z, torch.eye(3), torch.arange(3), 1.0)
    assert loss.item() == pytest.approx(math.log(math.e + 2) - 1)


def test_clusters_are_those_of_the_batchs_images(make, batch: Batch) -> None:
    method = make(DeepCluster)
    batch = batch._replace(index=torch.tensor([7, 0, 3, 3, 9, 1]))
    constants = {
        "centroids": _units(4, 5),
        "clusters": torch.tensor([3, 1, 0, 2, 0, 0, 0, 1, 0, 2]),
    }
    out = method(batch)
    expected = cluster_loss(out.z, constants["centroids"], torch.tensor([1, 3, 2, 2, 2, 1]), 0.1)
    assert torch.equal(method.loss(out, constants), expected)


def test_before_an_epoch_projections_are_clustered(make) -> None:
    method = make(DeepCluster)
    before = method.state.clone()
    h = torch.randn(9, 24, generator=torch.Generator().manual_seed(0))
    result = method.before_epoch(lambda: h)
    assert method.projector.training
    assert torch.equal(method.state.floats, before.floats)
    method.eval()
    with torch.no_grad():
        centroids, clusters = spherical_k_means(F.normalize(method.projector(h), dim=1), 5, 10)
    assert torch.equal(result["centroids"], centroids)
    assert torch.equal(result["clusters"][:9], clusters)
    assert result["clusters"].shape == (16,)


def test_training_clusters_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer("deepcluster", {"epochs": 2})
    seen = []
    trainer.fit(
        TrainingTask(
            random_pixels(24), None, torch.Generator().manual_seed(0), 0.05, 0.0, threading.Event()
        ),
        lambda method, batch, out, constants: seen.append(constants) or method.loss(out, constants),
        {},
    )
    shapes = [{name: tensor.shape for name, tensor in constants.items()} for constants in seen]
    assert (
        shapes == [{"centroids": (5, 5), "clusters": (32,)}] * 6
    )  # one captured step serves all epochs
    assert not torch.equal(seen[0]["centroids"], seen[-1]["centroids"])


def test_no_operation_waits_for_the_device() -> None:
    with FakeTensorMode():  # has shapes and no values: reading one raises
        centroids, clusters = spherical_k_means(torch.empty(6, 4), 3, 2)
        assert cluster_loss(torch.empty(2, 6, 4), centroids, clusters, 0.1).shape == ()
