"""Feature clusters: clients differ in what their images look like, found without a label (Dec-SSL).

Departures: Dec-SSL clusters a network's features. Without `init` the features here are the pixels of thumbnails:
nobody has a trained network yet when images are dealt.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Generator, Tensor

from fedssl import nets
from fedssl.data.class_partition import by_dirichlet, piled
from fedssl.data.images import Dataset, Images
from fedssl.data.partition import PARTITIONS, Partition, equal_sizes
from fedssl.errors import ConfigError

THUMBNAIL = 16  # pixels a side at most: main directions of larger ones are as smooth
STARTS = 4  # of k-means, of which the best is taken
ROUNDS = 100  # of k-means at most
_BLOCK = 512  # images read at a time


@PARTITIONS.register("clusters")
class Clusters(Partition):
    """Images are sorted into `clusters` groups that look alike; groups are shared as `dirichlet` shares classes.

    Features, their main directions (PCA), then k-means. Features are the pixels of thumbnails of 16 x 16 at most, or
    what a trained backbone (`init`) makes of pixels / 255. No label is looked at.
    """

    alpha: float = Field(gt=0)  # of the Dirichlet distribution; small: clients differ much in their clusters
    balanced: bool = False  # all clients hold equally many images
    clusters: int = Field(10, ge=1)  # groups that images are sorted into
    dims: int = Field(30, ge=1)  # main directions that are looked at
    init: Path | None = None  # a safetensors file with a backbone's weights; none: thumbnails
    backbone: str = "resnet18"  # which backbone `init` is of
    stem: str = "cifar"  # and how it meets its images

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        equal_sizes(len(data.train), clients)  # for its refusals
        if self.clusters > len(data.train):
            raise ConfigError(f"{len(data.train)} images are too few for {self.clusters} clusters")
        found = kmeans(principal(self.features(data.train), self.dims), self.clusters, generator)
        return by_dirichlet(piled(found, self.clusters, generator), clients, self.alpha, self.balanced, generator)

    @torch.inference_mode()
    def features(self, images: Images) -> Tensor:
        """(N, d) float32."""
        if self.init is None:
            return torch.cat([_thumbnails(some) for some in images.held.chunks(_BLOCK)])
        with torch.random.fork_rng(devices=[]):  # weights are drawn here only to be overwritten
            backbone = nets.build(self.backbone, images.image[0], self.stem).eval()
        nets.load_backbone(backbone, self.init)
        return torch.cat([backbone(some.float() / 255) for some in images.held.chunks(_BLOCK)])


def _thumbnails(images: Tensor) -> Tensor:
    """uint8 (n, C, H, W) → (n, C·h·w) float32 in 0 … 1, h and w at most THUMBNAIL."""
    height, width = (min(THUMBNAIL, side) for side in images.shape[-2:])
    small: Tensor = F.adaptive_avg_pool2d(images.float() / 255, (height, width))
    return small.flatten(1)


def principal(features: Tensor, dims: int) -> Tensor:
    """Features (N, d) along their `dims` directions of largest variance: (N, min(dims, d)) float64, centred."""
    mean = features.mean(0, dtype=torch.float64)
    spread = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    for some in features.split(_BLOCK):  # block by block: all of them in float64 would be twice what is held
        spread.addmm_((some - mean).T, some - mean)
    _, directions = torch.linalg.eigh(spread)  # ascending
    main = directions[:, -dims:].flip(1)
    return torch.cat([(some - mean) @ main for some in features.split(_BLOCK)])


def kmeans(points: Tensor, count: int, generator: Generator) -> Tensor:
    """Which of `count` clusters each of the points (N, d) is in: int64 (N,). Lloyd's algorithm from k-means++."""
    tries = [_lloyd(points, _spread(points, count, generator)) for _ in range(STARTS)]
    return min(tries, key=lambda found: found[0])[1]


def _spread(points: Tensor, count: int, generator: Generator) -> Tensor:
    """k-means++: first centres (count, d), each drawn in proportion to its squared distance from those before."""
    centres = [points[torch.randint(len(points), (), generator=generator)]]
    far = torch.full((len(points),), torch.inf, dtype=points.dtype)
    while len(centres) < count:
        far = torch.minimum(far, (points - centres[-1]).square().sum(1))
        height = torch.rand((), dtype=points.dtype, generator=generator) * far.sum()
        centres.append(points[int((far.cumsum(0) <= height).sum().clamp(max=len(points) - 1))])
    return torch.stack(centres)


def _lloyd(points: Tensor, centres: Tensor) -> tuple[float, Tensor]:
    """(sum of squared distances, clusters) once nobody changes sides; an empty cluster moves to the farthest point."""
    mine = torch.full((len(points),), -1)
    for _ in range(ROUNDS):
        apart, nearest = torch.cdist(points, centres).min(1)
        if torch.equal(nearest, mine):
            break
        mine = nearest
        sizes = torch.bincount(mine, minlength=len(centres))
        sums = torch.zeros_like(centres).index_add_(0, mine, points)
        centres = sums / sizes.clamp(min=1)[:, None]
        if len(empty := (sizes == 0).nonzero().flatten()):
            centres[empty] = points[apart.argsort(descending=True, stable=True)[: len(empty)]]
    return float(apart.square().sum()), mine
