"""The score of membership inference, and the choice of comparable images."""

from __future__ import annotations

import math

import pytest
import torch

from fedssl.analysis.audit.membership import mean_cosine, same_classes

pytestmark = pytest.mark.rows("C9")


def test_mean_cosine_by_hand() -> None:
    """Angles of 0, 60 and 90 degrees: pairs have cosines 0.5, 0 and cos 30° = 0.866."""
    rows = [[1.0, 0.0], [0.5, math.sqrt(0.75)], [0.0, 2.0]]
    features = torch.tensor(rows)[:, None]
    assert mean_cosine(features).tolist() == pytest.approx([(0.5 + math.sqrt(0.75)) / 3])


def test_equal_views_have_the_score_one() -> None:
    features = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(0)).expand(5, 4, 6)
    assert mean_cosine(features).tolist() == pytest.approx([1.0] * 4)


def test_samples_have_the_same_classes() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    others = torch.tensor([1, 1, 1, 0, 0, 3])
    first, second = same_classes(labels, others, torch.Generator().manual_seed(0))
    assert labels[first].tolist() == others[second].tolist()
    assert sorted(labels[first].tolist()) == [0, 0, 1, 1]
    assert len(set(first.tolist())) == 4
