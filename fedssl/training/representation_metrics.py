"""Metrics of a representation without labels: collapse, alignment and uniformity."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def spread(z: Tensor) -> float:
    """Return √k times the mean standard deviation of unit-length rows of z (…, k)."""
    unit = F.normalize(z.flatten(0, -2).float(), dim=-1)
    return float(unit.std(0).mean() * math.sqrt(unit.shape[1]))


@torch.no_grad()
def effective_rank(h: Tensor) -> float:
    """Return exp(entropy) of the normalised singular values of h (…, d).

    This is RankMe (Garrido et al., 2023).
    """
    rows = h.flatten(0, -2).double()
    if rows.shape[0] <= rows.shape[1]:
        gram = rows @ rows.T
    else:
        gram = rows.T @ rows
    # On the host: torch loads CUDA's solvers lazily, and fails if two threads do so at once.
    values = torch.linalg.eigvalsh(gram.cpu()).clamp(min=0).sqrt()
    share = values / values.sum().clamp(min=1e-12)
    return float(torch.special.entr(share).sum().exp())


@torch.no_grad()
def alignment(h: Tensor) -> float | None:
    """Return the mean squared distance between an image's views, for features h (V, B, d).

    Features are scaled to unit length; 0 if they do not depend on the view (Wang & Isola, 2020).
    None for a single view.
    """
    count = len(h)
    if count < 2:
        return None
    unit = F.normalize(h.float(), dim=-1)
    pairs = count * (count - 1)  # of different views
    cosine = (unit.sum(0).square().sum(-1) - count) / pairs
    return float((2 - 2 * cosine).mean())


@torch.no_grad()
def uniformity(h: Tensor) -> float | None:
    """Return log of the mean of exp(−2‖·‖²) over pairs of different images in a view.

    Features h (V, B, d) are scaled to unit length; lower values mean that they cover the sphere
    more evenly (Wang & Isola, 2020). None for a single image.
    """
    if h.shape[1] < 2:
        return None
    unit = F.normalize(h.float(), dim=-1)
    means = [torch.pdist(view).square().mul(-2).exp().mean() for view in unit]
    return float(torch.stack(means).mean().log())
