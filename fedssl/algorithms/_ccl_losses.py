"""CCL's two losses.

Queries (V, B, d) are B images in V views: images are averaged over, views summed; all vectors have
unit length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

EXCLUDED = float("-inf")  # the logit of a feature that does not count


def fused_contrast(
    queries: Tensor, keys: Tensor, features: Tensor, negative: Tensor, tau: float
) -> Tensor:
    """Return the loss of Eq. 3 and 6 for queries and their keys (V, B, d), 0-d.

    Negatives are the features (n, d) that `negative` (n,) marks.
    """
    positive = (queries * keys).sum(-1, keepdim=True)
    others = (queries @ features.T).masked_fill(~negative, EXCLUDED)
    logits = torch.cat([positive, others], -1) / tau
    return (logits.logsumexp(-1) - logits[..., 0]).mean(1).sum()


def candidates_among(
    known: Tensor, limit: int
) -> Callable[[int, torch.Generator], Mapping[str, Tensor]]:
    """Return a function that draws the `candidates` of each step (Eq. 7).

    They are the numbers of at most `limit` features, each once. Of all features (n,) those that are
    `known` come first; if there are fewer than `limit`, the number of the first unknown feature
    fills the remaining places.
    """
    count = int(known.sum())
    places = min(len(known), limit)

    def draw(n: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        drawn = torch.randperm(count, generator=generator, device=generator.device)[:places]
        return {"candidates": F.pad(drawn, (0, places - len(drawn)), value=count)}

    return draw


def neighbourhood_matching(
    queries: Tensor, candidates: Tensor, known: Tensor, neighbours: int, tau: float
) -> Tensor:
    """Return the loss of Eq. 8–11 for queries (V, B, d) among candidates (n, d), 0-d.

    `known` (n,) marks the candidates that count; there are more of them than `neighbours`.

    A match to L_j, that is to neighbour j or any candidate that is no neighbour, is a choice
    between the neighbour and the rest, and perhaps another within the rest. So its entropy is
    h(p) + (1 − p)·H: p is the neighbour's probability, h(p) = −p·log p − (1 − p)·log(1 − p), and H
    the entropy within the rest, the same for all j.
    """
    logits = queries @ candidates.T / tau
    counted = logits.masked_fill(~known, EXCLUDED)
    near = counted.topk(neighbours)  # Eq. 8
    rest = counted.scatter(-1, near.indices, EXCLUDED)  # Eq. 9: Q' without P(q)
    total = rest.logsumexp(-1, keepdim=True)
    within = total - ((rest - total).exp() * logits).sum(-1, keepdim=True)  # H
    odds = near.values - total  # log p − log(1 − p), Eq. 10
    p = odds.sigmoid()
    entropies = F.softplus(odds) - p * odds + (1 - p) * within  # (V, B, N)
    return entropies.mean((1, 2)).sum()  # Eq. 11
