"""The first 80% of clients' images, and figures over partitions, by hand."""

from __future__ import annotations

import torch

from benchmarks.dirichlet import describe, first_classes


def test_the_first_classes_are_kept() -> None:
    """Of 10 images 8 are kept: 4 + 4 of (4, 6), and all 8 of (8, 2); of 5, 4."""
    table = torch.tensor([[4, 6, 0], [8, 2, 0], [0, 0, 5]])
    assert first_classes(table).tolist() == [[4, 4, 0], [8, 0, 0], [0, 0, 4]]


def test_figures_by_hand() -> None:
    """Two clients of one class each are at distance 1 from the whole; 80% of them too."""
    table = torch.tensor([[5000, 0], [0, 5000]])
    assert describe([table, table]) == {
        "accepted": 2,
        "distance": 1.0,
        "deviation": 0.0,
        "distance_of_80%": 1.0,
        "trained_share_of_first_class": 0.8,
        "trained_share_of_last_class": 0.8,
    }
    assert describe([]) == {"accepted": 0}
