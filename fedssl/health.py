"""What can be told of a representation without labels: whether it collapses, and how it lies on the sphere."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def spread(z: Tensor) -> float:
    """√k times the mean standard deviation of unit-length rows of z (…, k)."""
    unit = F.normalize(z.flatten(0, -2).float(), dim=-1)
    return float(unit.std(0).mean() * math.sqrt(unit.shape[1]))


@torch.no_grad()
def effective_rank(h: Tensor) -> float:
    """exp(entropy) of the normalised singular values of h (…, d): RankMe (Garrido et al., 2023)."""
    rows = h.flatten(0, -2).double()
    gram = rows @ rows.T if rows.shape[0] <= rows.shape[1] else rows.T @ rows
    # On the host: torch loads CUDA's solvers when first asked, and fails where two threads ask at once.
    values = torch.linalg.eigvalsh(gram.cpu()).clamp(min=0).sqrt()
    share = values / values.sum().clamp(min=1e-12)
    return float(torch.special.entr(share).sum().exp())


@torch.no_grad()
def alignment(h: Tensor) -> float | None:
    """Mean squared distance between unit-length features of an image's views, h (V, B, d): 0 where views do not matter
    (Wang & Isola, 2020). None for a single view."""
    count, unit = len(h), F.normalize(h.float(), dim=-1)
    if count < 2:
        return None
    cosine = (unit.sum(0).square().sum(-1) - count) / (count * (count - 1))  # over pairs of different views
    return float((2 - 2 * cosine).mean())


@torch.no_grad()
def uniformity(h: Tensor) -> float | None:
    """log of the mean of exp(−2‖·‖²) over pairs of different images in a view, unit-length features h (V, B, d): the
    lower, the more evenly they cover the sphere (Wang & Isola, 2020). None for a single image."""
    if h.shape[1] < 2:
        return None
    unit = F.normalize(h.float(), dim=-1)
    return float(torch.stack([torch.pdist(view).square().mul(-2).exp().mean() for view in unit]).mean().log())
