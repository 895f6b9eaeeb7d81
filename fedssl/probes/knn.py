"""Weighted k-nearest-neighbour accuracy on backbone features, which needs no training.

Wu et al., "Unsupervised feature learning via non-parametric instance discrimination", CVPR 2018:
cosine similarity, k = 200 neighbours, votes weighted by exp(similarity / 0.1).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.probes.features import Labelled


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
