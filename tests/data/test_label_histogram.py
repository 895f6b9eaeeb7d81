import pytest
import torch

from fedssl.data import earth_movers_distance, histogram


def test_histogram_counts_classes_by_client():
    parts = {
        "a": torch.tensor([0, 1, 4]),
        "b": torch.tensor([2]),
        "c": torch.tensor([], dtype=torch.int64),
    }
    table = histogram(parts, torch.tensor([1, 1, 0, 2, 3]), 5)
    assert table.tolist() == [[0, 2, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]


@pytest.mark.parametrize("classes", [2, 10])
def test_one_class_per_client_has_the_largest_distance(classes):
    """|1 - 1/C| + (C - 1) / C = 2 (1 - 1/C)."""
    assert earth_movers_distance(7 * torch.eye(classes).long()) == pytest.approx(
        2 * (1 - 1 / classes)
    )


def test_distance_by_hand():
    """Overall, half of the images are of each class: shares 3/4 and 1/4 are at distance 1/2.

    The empty client does not count.
    """
    assert earth_movers_distance(torch.tensor([[3, 1], [1, 3], [0, 0]])) == pytest.approx(0.5)
    assert earth_movers_distance(torch.full((3, 4), 5)) == 0
