"""DeepCluster-v2: cluster the images' projections once an epoch, then tell each view's cluster.

Caron et al., "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments", NeurIPS 2020 (appendix D),
after "Deep Clustering for Unsupervised Learning of Visual Features", ECCV 2018.
Departures: a client clusters its own images, under the clean images' projections of the model as the epoch begins, not
a memory of projections from the epoch before; one clustering, not three; k-means starts from evenly spaced images, so
that nothing is drawn; fewer clusters, since a client holds thousands of images and not a million.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedssl.method import METHODS, Batch, Given, Method, MethodSettings, Output
from fedssl.nets import mlp


@torch.no_grad()
def spherical_k_means(rows: Tensor, k: int, iterations: int) -> tuple[Tensor, Tensor]:
    """Unit rows (n, d) to unit centroids (k, d) and each row's nearest (n,), by cosine.

    It begins with k evenly spaced rows; a centroid that no row is nearest to stays where it is.
    """
    centroids = rows[torch.arange(k, device=rows.device) * len(rows) // k]
    for _ in range(iterations):
        mine = F.one_hot((rows @ centroids.T).argmax(1), k).to(rows.dtype)  # (n, k)
        sums = mine.T @ rows  # not index_add: on CUDA its sums are not the same from run to run
        centroids = torch.where(mine.sum(0)[:, None] > 0, F.normalize(sums, dim=1), centroids)
    return centroids, (rows @ centroids.T).argmax(1)


def cluster_loss(z: Tensor, centroids: Tensor, clusters: Tensor, temperature: float) -> Tensor:
    """Projections z (V, B, d), unit centroids (k, d) and the images' clusters (B,) to a 0-d loss.

    The paper's Eq. 7: cross-entropy of softmax(cosines with the centroids / t) with the cluster, averaged.
    """
    logits = F.normalize(z, dim=-1) @ centroids.T / temperature
    return F.cross_entropy(logits.flatten(0, 1), clusters.repeat(len(z)))


class DeepClusterSettings(MethodSettings):
    hidden: int = Field(2048, gt=0)
    dim: int = Field(128, gt=0)
    clusters: int = Field(100, gt=1)  # how many, the paper's K
    temperature: float = Field(0.1, gt=0)
    iterations: int = Field(10, gt=0, le=1000)  # of k-means, before each epoch


@METHODS.register("deepcluster")
class DeepCluster(Method):
    Settings = DeepClusterSettings
    settings: DeepClusterSettings

    def __init__(self, settings: DeepClusterSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.projector = mlp(self.features, settings.hidden, settings.dim)

    @torch.no_grad()
    def before_epoch(self, embed: Callable[[], Tensor]) -> Mapping[str, Tensor]:
        h, training = embed(), self.projector.training
        self.projector.eval()
        z = F.normalize(self.projector(h), dim=-1)
        self.projector.train(training)
        centroids, clusters = spherical_k_means(z, self.settings.clusters, self.settings.iterations)
        # Up to a power of two, never looked up: clients of about one size then share a compiled and recorded step.
        spare = (1 << (len(clusters) - 1).bit_length()) - len(clusters)
        return {"centroids": centroids, "clusters": F.pad(clusters, (0, spare))}

    def forward(self, batch: Batch) -> Output:
        return self.encode_views(batch.views[0])._replace(index=batch.index)

    def loss(self, out: Output, given: Given) -> Tensor:
        assert out.index is not None
        return cluster_loss(out.z, given["centroids"], given["clusters"][out.index], self.settings.temperature)
