"""Weighted k-nearest-neighbour accuracy on backbone features, which needs no training.

Wu et al., "Unsupervised feature learning via non-parametric instance discrimination", CVPR 2018:
cosine similarity, k = 200 neighbours, votes weighted by exp(similarity / 0.1).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.probes.features import Labelled

MAX_NEIGHBOURS = 200


def default_neighbours(labelled: int) -> int:
    """Return k for this many labelled images: their square root, at most the papers' 200.

    200 neighbours suit 50,000 labelled images; of 400, they would be half of all images.
    """
    return max(1, min(MAX_NEIGHBOURS, math.isqrt(labelled)))


@torch.inference_mode()
def knn_predict(
    train: Labelled, queries: Tensor, k: int, temperature: float, batch: int = 2000
) -> Tensor:
    """Return the classes (n,) of features (n, d); all neighbours vote if there are fewer than k."""
    bank = F.normalize(train.features, dim=1)
    classes = int(train.labels.max()) + 1
    k = min(k, len(bank))
    predictions = []
    for rows in F.normalize(queries, dim=1).split(batch):
        similarity, neighbour = (rows @ bank.T).topk(k, dim=1)
        votes = rows.new_zeros(len(rows), classes)
        # Relative to the nearest neighbour, so that exp does not overflow.
        weights = ((similarity - similarity[:, :1]) / temperature).exp()
        votes.scatter_add_(1, train.labels[neighbour], weights)
        predictions.append(votes.argmax(1))
    return torch.cat(predictions)
