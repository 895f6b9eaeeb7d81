"""Measure how much clients differ in their classes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def histogram(parts: Mapping[str, Tensor], labels: Tensor, classes: int) -> Tensor:
    """Count the images of each class at each client: int64 (K, C).

    `parts` holds the indices of each client's images, `labels` is int64 (N,).
    """
    rows = []
    for index in parts.values():
        rows.append(torch.bincount(labels[index], minlength=classes))
    return torch.stack(rows)


def earth_movers_distance(hist: Tensor) -> float:
    """Return the mean L1 distance between the clients' class shares and those of all images.

    `hist` holds counts (K, C). 0: all alike; 2 (1 - 1/C): one class each (Dec-SSL, Figure 17).
    Clients without images do not count.
    """
    counts = hist[hist.sum(1) > 0].double()
    overall = counts.sum(0) / counts.sum()
    shares = counts / counts.sum(1, keepdim=True)
    return float((shares - overall).abs().sum(1).mean())
