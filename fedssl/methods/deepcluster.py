"""DeepCluster-v2: cluster the images' projections once an epoch, then predict the cluster of each
view.

Caron et al., "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments", NeurIPS
2020 (appendix D), after "Deep Clustering for Unsupervised Learning of Visual Features", ECCV 2018.
Departures: a client clusters its own images, by the projections of the clean images at the
beginning of the epoch, not by stored projections from the epoch before; one clustering, not three;
k-means starts from evenly spaced images, without random draws; fewer clusters, since a client holds
thousands of images and not a million.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedssl.method import METHODS, Batch, Constants, Method, MethodSettings, Output
from fedssl.nets import mlp


@torch.no_grad()
def spherical_k_means(rows: Tensor, k: int, iterations: int) -> tuple[Tensor, Tensor]:
    """Cluster unit rows (n, d); return unit centroids (k, d) and the nearest one of each row (n,),
    by cosine.

    The first centroids are k evenly spaced rows; a centroid that is nearest to no row does not
    move.
    """
    centroids = rows[torch.arange(k, device=rows.device) * len(rows) // k]
    for _ in range(iterations):
        assigned = F.one_hot((rows @ centroids.T).argmax(1), k).to(rows.dtype)  # (n, k)
        sums = assigned.T @ rows  # not index_add, whose sums on CUDA differ from run to run
        has_rows = assigned.sum(0)[:, None] > 0
        centroids = torch.where(has_rows, F.normalize(sums, dim=1), centroids)
    return centroids, (rows @ centroids.T).argmax(1)


def cluster_loss(z: Tensor, centroids: Tensor, clusters: Tensor, temperature: float) -> Tensor:
    """Return a 0-d loss of projections z (V, B, d), unit centroids (k, d) and the images' clusters
    (B,).

    The paper's Eq. 7: cross-entropy of softmax(cosines with the centroids / t) with the cluster,
    averaged.
    """
    logits = F.normalize(z, dim=-1) @ centroids.T / temperature
    return F.cross_entropy(logits.flatten(0, 1), clusters.repeat(len(z)))


class DeepClusterSettings(MethodSettings):
    """Settings of DeepCluster-v2."""

    hidden: int = Field(2048, gt=0)
    dim: int = Field(128, gt=0)
    clusters: int = Field(100, gt=1)  # how many, the paper's K
    temperature: float = Field(0.1, gt=0)
    iterations: int = Field(10, gt=0, le=1000)  # of k-means, before each epoch


@METHODS.register("deepcluster")
class DeepCluster(Method):
    """DeepCluster-v2: cluster the images' projections once an epoch, then predict the cluster of
    each view."""

    Settings = DeepClusterSettings
    settings: DeepClusterSettings

    def __init__(self, settings: DeepClusterSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.projector = mlp(self.features, settings.hidden, settings.dim)

    @torch.no_grad()
    def before_epoch(self, embed: Callable[[], Tensor]) -> Mapping[str, Tensor]:
        """Cluster the client's images; return the centroids and the cluster of each image."""
        h = embed()
        training = self.projector.training
        self.projector.eval()
        z = F.normalize(self.projector(h), dim=-1)
        self.projector.train(training)
        centroids, clusters = spherical_k_means(z, self.settings.clusters, self.settings.iterations)
        # Padded to a power of two, so that clients of similar size share a compiled and recorded
        # step. The padding is never read.
        padding = (1 << (len(clusters) - 1).bit_length()) - len(clusters)
        return {"centroids": centroids, "clusters": F.pad(clusters, (0, padding))}

    def forward(self, batch: Batch) -> Output:
        """Encode both views; the loss finds the clusters by `index`."""
        return self.encode_views(batch.views[0])._replace(index=batch.index)

    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return the cross-entropy with the clusters of this epoch."""
        assert out.index is not None
        clusters = constants["clusters"][out.index]
        return cluster_loss(
            out.z, constants["centroids"], clusters, temperature=self.settings.temperature
        )
