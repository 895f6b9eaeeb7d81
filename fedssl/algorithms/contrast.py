"""CCL's two losses. Queries (V, B, d) are B images in V views: images are averaged over, views summed; all vectors have
unit length."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

NEVER = float("-inf")  # the logit of what does not count


def fused_contrast(queries: Tensor, keys: Tensor, features: Tensor, negative: Tensor, tau: float) -> Tensor:
    """Eq. 3 and 6: queries and their keys (V, B, d) among features (n, d), those of them marked as `negative` (n,)."""
    positive = (queries * keys).sum(-1, keepdim=True)
    others = (queries @ features.T).masked_fill(~negative, NEVER)
    logits = torch.cat([positive, others], -1) / tau
    return (logits.logsumexp(-1) - logits[..., 0]).mean(1).sum()


def candidates_among(known: Tensor, most: int) -> Callable[[int, torch.Generator], Mapping[str, Tensor]]:
    """Eq. 7: draws `candidates` of each step, numbers of at most `most` features, each once. Of all features (n,) those
    `known` come first; where they are fewer than `most`, the first that is not known fills the places left."""
    count, places = int(known.sum()), min(len(known), most)

    def draw(n: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        drawn = torch.randperm(count, generator=generator, device=generator.device)[:places]
        return {"candidates": F.pad(drawn, (0, places - len(drawn)), value=count)}

    return draw


def neighbourhood_matching(queries: Tensor, candidates: Tensor, known: Tensor, neighbours: int, tau: float) -> Tensor:
    """Eq. 8–11: queries (V, B, d) among candidates (n, d), those of them marked as `known` (n,): more than neighbours.

    A match to L_j, that is to neighbour j or any candidate that is no neighbour, is a choice between the neighbour and
    the rest, and perhaps another within the rest. So its entropy is h(p) + (1 − p)·H: p is the neighbour's
    probability, h(p) = −p·log p − (1 − p)·log(1 − p), and H the entropy within the rest, the same for all j.
    """
    logits = queries @ candidates.T / tau
    counted = logits.masked_fill(~known, NEVER)
    near = counted.topk(neighbours)  # Eq. 8
    rest = counted.scatter(-1, near.indices, NEVER)  # Eq. 9: Q' without P(q)
    total = rest.logsumexp(-1, keepdim=True)
    within = total - ((rest - total).exp() * logits).sum(-1, keepdim=True)  # H
    odds = near.values - total  # log p − log(1 − p), Eq. 10
    p = odds.sigmoid()
    entropies = F.softplus(odds) - p * odds + (1 - p) * within  # (V, B, N)
    return entropies.mean((1, 2)).sum()  # Eq. 11
