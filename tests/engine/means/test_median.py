"""The median by hand, and how far bad clients can move it."""

from __future__ import annotations

import pytest
import torch
from error_messages import raises
from hypothesis import given
from hypothesis import strategies as st
from small_models import mean_of, small_model

from fedssl.core.errors import TooFewUploadsError
from fedssl.engine.means.median import Median, median

pytestmark = pytest.mark.rows("U12")


def test_the_median_of_three_by_hand() -> None:
    """Of the weights (1, 9, 2) and (5, 4, −7), of the statistics (0, 3, 1), of the counters
    (7, 1, 2)."""
    models = [
        small_model([1.0, 5.0], [0.0], 7),
        small_model([9.0, 4.0], [3.0], 1),
        small_model([2.0, -7.0], [1.0], 2),
    ]
    merged = mean_of(Median(), models)
    assert merged.floats.tolist() == [2.0, 4.0, 1.0]
    assert merged.counts.tolist() == [2]


def test_the_median_of_four_is_the_mean_of_the_middle_two() -> None:
    """(2 + 5) / 2 = 3.5; of the counters 1, 2, 3 and 4 the lower of the middle two."""
    values = [(9.0, 1), (2.0, 2), (5.0, 3), (-1.0, 4)]
    merged = mean_of(Median(), [small_model([value], [value], count) for value, count in values])
    assert merged.floats.tolist() == [3.5, 3.5]
    assert merged.counts.tolist() == [2]


def test_the_median_of_one_model_is_that_model() -> None:
    model = small_model([0.1, -3.0], [7.0])
    assert torch.equal(median([model]), model.floats)


@given(st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=2, max_size=2))
def test_two_of_five_cannot_move_the_median_out_of_the_others_range(bad: list[float]) -> None:
    honest = [small_model([value], [value + 1]) for value in (1.0, 2.0, 3.0)]
    merged = mean_of(Median(), [small_model([value], [value]) for value in bad] + honest)
    assert 1.0 <= merged.floats[0] <= 3.0
    assert 2.0 <= merged.floats[1] <= 4.0


def test_three_of_five_can() -> None:
    """The breakdown point: with most of the uploads, bad clients choose the median."""
    models = [small_model([value]) for value in (1e9, 1e9, 1e9, 1.0, 2.0)]
    assert mean_of(Median(), models).floats[0] == 1e9


@pytest.mark.parametrize("uploads", [1, 2])
def test_too_few_uploads(uploads: int) -> None:
    with raises(TooFewUploadsError):
        mean_of(Median(), [small_model([1.0])] * uploads)
