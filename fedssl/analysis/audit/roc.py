"""How well scores separate members from non-members: AUC, its interval, TPR at a low FPR."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

RESAMPLES = 1000
MAX_FPR = 0.01
MIN_OTHERS = 100  # non-members, for one of them to be MAX_FPR of them


class Separation(NamedTuple):
    """The separation of two samples of scores; guessing: an AUC of 0.5 and a TPR of the FPR."""

    auc: float
    low: float  # ends of the 95% interval of the AUC
    high: float
    tpr: float | None  # share of members above all but MAX_FPR of the others; None: too few others

    @property
    def above_guessing(self) -> bool:
        """True if the interval is above 0.5."""
        return self.low > 0.5


def auc(members: Tensor, others: Tensor) -> float:
    """Return the share of pairs (member, other) with a higher score of the member; ties: half.

    Scores are (n,) and (m,). This is the area under the ROC curve.
    """
    return float(_wins(members, others).mean())


def _wins(members: Tensor, others: Tensor) -> Tensor:
    """Return (n, m): 1 where the member has the higher score, 0.5 where scores are equal."""
    higher = members[:, None] > others[None]
    equal = members[:, None] == others[None]
    return higher.double() + 0.5 * equal.double()


def tpr_at(members: Tensor, others: Tensor, max_fpr: float = MAX_FPR) -> float:
    """Return the largest share of members above a threshold that `max_fpr` of the others exceed."""
    allowed = int(max_fpr * len(others))
    threshold = others.sort(descending=True).values[allowed]
    return float((members > threshold).double().mean())


def separation(members: Tensor, others: Tensor, stream: torch.Generator) -> Separation:
    """Return the separation of scores (n,) and (m,), with a bootstrap interval of the AUC.

    Members and others are resampled separately; the interval has the 2.5th and 97.5th percentile.
    """
    wins = _wins(members, others)
    first = _bootstrap_counts(len(members), stream)
    second = _bootstrap_counts(len(others), stream)
    # Sums of halves are exact, so that ties give exactly 0.5.
    samples = ((first @ wins) * second).sum(1) / wins.numel()
    low, high = samples.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    tpr = tpr_at(members, others) if len(others) >= MIN_OTHERS else None
    return Separation(float(wins.mean()), low, high, tpr)


def _bootstrap_counts(count: int, stream: torch.Generator) -> Tensor:
    """Return (RESAMPLES, count): how often each item is in a resample."""
    drawn = torch.randint(count, (RESAMPLES, count), generator=stream)
    counts = torch.zeros(RESAMPLES, count, dtype=torch.float64)
    return counts.scatter_add_(1, drawn, torch.ones_like(counts))
