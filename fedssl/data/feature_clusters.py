"""Feature clusters: clients differ in the appearance of their images, without labels (Dec-SSL).

Departures: Dec-SSL clusters a network's features. Without `init` the features here are the pixels
of thumbnails, because no trained network exists yet when images are assigned to clients.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Generator, Tensor

from fedssl import nets
from fedssl.core.errors import ConfigError
from fedssl.data.class_partition import Dirichlet, shuffled_groups
from fedssl.data.images import Dataset, Images
from fedssl.data.partition import PARTITIONS, Partition, check_client_count

THUMBNAIL = 16  # maximal side in pixels: principal components of larger ones are as smooth
KMEANS_STARTS = 4  # the best of them is used
MAX_ITERATIONS = 100  # of k-means
_BLOCK = 512  # images read at a time


@PARTITIONS.register("clusters")
class Clusters(Partition):
    """Images are grouped by appearance into `clusters`; `dirichlet` shares the groups like classes.

    Features, their principal components (PCA), then k-means. Features are the pixels of thumbnails
    of 16 x 16 at most, or the output of a trained backbone (`init`) for pixels / 255. No label is
    used.
    """

    added_later: ClassVar = ("capped", "share")

    alpha: float = Field(gt=0)  # Dirichlet parameter; small: clients differ much in their clusters
    balanced: bool = False  # all clients hold equally many images
    capped: bool = False  # a client that holds N/K images gets no more
    share: float = Field(1.0, gt=0, le=1)  # of its images that a client keeps, as with `dirichlet`
    clusters: int = Field(10, ge=1)  # groups of images
    dims: int = Field(30, ge=1)  # principal components used
    init: Path | None = None  # a safetensors file with a backbone's weights; none: thumbnails
    backbone: str = "resnet18"  # the backbone whose weights `init` holds
    stem: str = "cifar"  # the stem of that backbone

    @model_validator(mode="after")
    def _check_rule(self) -> Self:
        if self.capped and self.balanced:
            raise ValueError(
                "balanced and capped cannot both be true: balanced clients already have equal "
                "numbers of images. Set one of them to false"
            )
        return self

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        check_client_count(len(data.train), clients)
        if self.clusters > len(data.train):
            raise ConfigError(f"{len(data.train)} images are too few for {self.clusters} clusters")
        components = principal_components(self.features(data.train), self.dims)
        assignment = kmeans(components, self.clusters, generator)
        groups = shuffled_groups(assignment, self.clusters, generator)
        return self.rule.deal(groups, clients, generator)

    @property
    def rule(self) -> Dirichlet:
        """The partition that shares the groups."""
        return Dirichlet(
            alpha=self.alpha, balanced=self.balanced, capped=self.capped, share=self.share
        )

    @torch.inference_mode()
    def features(self, images: Images) -> Tensor:
        """Return the features of all images: (N, d) float32."""
        if self.init is None:
            return torch.cat(list(map(_thumbnails, images.pixel_rows.chunks(_BLOCK))))
        with torch.random.fork_rng(devices=[]):  # the weights drawn here are overwritten
            backbone = nets.build(self.backbone, images.image_shape[0], self.stem).eval()
        nets.load_backbone(backbone, self.init)
        return torch.cat(
            [backbone(block.float() / 255) for block in images.pixel_rows.chunks(_BLOCK)]
        )


def _thumbnails(images: Tensor) -> Tensor:
    """Convert uint8 (n, C, H, W) to (n, C·h·w) float32 in 0 … 1, with h and w at most THUMBNAIL."""
    height = min(THUMBNAIL, images.shape[-2])
    width = min(THUMBNAIL, images.shape[-1])
    small: Tensor = F.adaptive_avg_pool2d(images.float() / 255, (height, width))
    return small.flatten(1)


def principal_components(features: Tensor, dims: int) -> Tensor:
    """Project features (N, d) on their `dims` directions of largest variance.

    Return (N, min(dims, d)) float64, centred.
    """
    mean = features.mean(0, dtype=torch.float64)
    scatter = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    # Block by block: all features in float64 would take twice their memory.
    for block in features.split(_BLOCK):
        scatter.addmm_((block - mean).T, block - mean)
    _, directions = torch.linalg.eigh(scatter)  # ascending
    main = directions[:, -dims:].flip(1)
    return torch.cat([(block - mean) @ main for block in features.split(_BLOCK)])


def kmeans(points: Tensor, count: int, generator: Generator) -> Tensor:
    """Assign points (N, d) to `count` clusters: int64 (N,). Lloyd's algorithm from k-means++."""
    results = []
    for _ in range(KMEANS_STARTS):
        centres = _initial_centres(points, count, generator)
        results.append(_lloyd(points, centres))
    _, assignment = min(results, key=lambda result: result[0])
    return assignment


def _initial_centres(points: Tensor, count: int, generator: Generator) -> Tensor:
    """Return the centres (count, d) of k-means++.

    Each is drawn in proportion to its squared distance from the previous ones.
    """
    centres = [points[torch.randint(len(points), (), generator=generator)]]
    distances = torch.full((len(points),), torch.inf, dtype=points.dtype)
    while len(centres) < count:
        distances = torch.minimum(distances, (points - centres[-1]).square().sum(1))
        draw = torch.rand((), dtype=points.dtype, generator=generator) * distances.sum()
        chosen = (distances.cumsum(0) <= draw).sum().clamp(max=len(points) - 1)
        centres.append(points[int(chosen)])
    return torch.stack(centres)


def _lloyd(points: Tensor, centres: Tensor) -> tuple[float, Tensor]:
    """Return (sum of squared distances, assignment) once the assignment is stable.

    An empty cluster moves to the farthest point.
    """
    assignment = torch.full((len(points),), -1)
    for _ in range(MAX_ITERATIONS):
        distances, nearest = torch.cdist(points, centres).min(1)
        if torch.equal(nearest, assignment):
            break
        assignment = nearest
        sizes = torch.bincount(assignment, minlength=len(centres))
        sums = torch.zeros_like(centres).index_add_(0, assignment, points)
        centres = sums / sizes.clamp(min=1)[:, None]
        empty = (sizes == 0).nonzero().flatten()
        if len(empty):
            farthest = distances.argsort(descending=True, stable=True)[: len(empty)]
            centres[empty] = points[farthest]
    return float(distances.square().sum()), assignment
