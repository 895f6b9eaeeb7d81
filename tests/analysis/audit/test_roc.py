"""AUC, its interval and TPR at a low FPR, on scores with known answers."""

from __future__ import annotations

import pytest
import torch

from fedssl.analysis.audit.roc import auc, separation, tpr_at


def stream() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_separable_scores() -> None:
    found = separation(torch.arange(200.0) + 500, torch.arange(200.0), stream())
    assert (found.auc, found.low, found.high, found.tpr) == (1.0, 1.0, 1.0, 1.0)
    assert found.above_guessing


def test_identical_scores() -> None:
    """Ties count half, and no member is above the threshold."""
    found = separation(torch.ones(50), torch.ones(170), stream())
    assert (found.auc, found.low, found.high, found.tpr) == (0.5, 0.5, 0.5, 0.0)
    assert not found.above_guessing


def test_auc_by_hand() -> None:
    """Pairs won: 3 beats both others, 2 beats 1 and ties with 2: (2 + 1.5) / 4."""
    assert auc(torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0])) == 3.5 / 4


def test_the_order_and_a_monotonic_map_of_scores_do_not_matter() -> None:
    members = torch.randn(40, generator=stream())
    others = torch.randn(30, generator=stream().manual_seed(1))
    expected = auc(members, others)
    assert auc(members.flip(0), others) == expected
    assert auc(members.exp(), others.exp()) == expected
    assert auc(others, members) == pytest.approx(1 - expected)


def test_the_interval_contains_half_for_equal_distributions() -> None:
    members = torch.randn(300, generator=stream())
    others = torch.randn(300, generator=stream().manual_seed(1))
    found = separation(members, others, stream())
    assert found.low < 0.5 < found.high
    # The standard error of the AUC of equal distributions is √((n + m + 1) / (12·n·m)) = 0.0236.
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.0236, rel=0.15)


def test_tpr_at_one_percent() -> None:
    """One of 100 others may be above the threshold, so it is their second highest score, 98."""
    assert tpr_at(torch.tensor([97.0, 98.0, 98.5, 200.0]), torch.arange(100.0)) == 0.5


def test_the_tpr_at_one_percent_needs_a_hundred_others() -> None:
    """With 99, no other may be above the threshold, so the FPR would be 0."""
    members = torch.arange(120.0)
    assert separation(members, torch.arange(99.0), stream()).tpr is None
    assert separation(members, torch.arange(100.0), stream()).tpr == 21 / 120  # above 98
