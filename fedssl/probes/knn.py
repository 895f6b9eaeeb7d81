"""Weighted k-nearest-neighbour accuracy on backbone features: a quick look that trains nothing.

Wu et al., "Unsupervised feature learning via non-parametric instance discrimination", CVPR 2018: cosine
similarity, k = 200 neighbours, votes weighted by exp(similarity / 0.1).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.probes.features import Labelled


@torch.inference_mode()
def knn_predict(train: Labelled, queries: Tensor, k: int, temperature: float, batch: int = 2000) -> Tensor:
    """Classes (n,) of features (n, d); where there are fewer than k to vote, all do."""
    bank = F.normalize(train.features, dim=1)
    classes, k = int(train.labels.max()) + 1, min(k, len(bank))
    predictions = []
    for rows in F.normalize(queries, dim=1).split(batch):
        similarity, neighbour = (rows @ bank.T).topk(k, dim=1)
        votes = rows.new_zeros(len(rows), classes)
        weights = ((similarity - similarity[:, :1]) / temperature).exp()  # relative to the nearest: none overflows
        votes.scatter_add_(1, train.labels[neighbour], weights)
        predictions.append(votes.argmax(1))
    return torch.cat(predictions)
