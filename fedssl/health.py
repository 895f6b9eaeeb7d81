"""Signs of a collapsing representation that need no labels."""

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
