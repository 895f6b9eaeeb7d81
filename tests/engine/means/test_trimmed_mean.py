"""The trimmed mean by hand, how many uploads it leaves out, and how far bad clients can move it."""

from __future__ import annotations

import pytest
from error_messages import raises
from hypothesis import given
from hypothesis import strategies as st
from small_models import mean_of, small_model

from fedssl.core.errors import ConfigError, TooFewUploadsError
from fedssl.core.settings import validate
from fedssl.engine.means.trimmed_mean import TrimmedMean

pytestmark = pytest.mark.rows("U12")


def test_the_trimmed_mean_of_five_by_hand() -> None:
    """A share of 0.2 leaves out 1 and 100: (2 + 4 + 6) / 3 = 4, whatever the images of clients."""
    models = [small_model([value], [-value]) for value in (4.0, 100.0, 2.0, 1.0, 6.0)]
    assert mean_of(TrimmedMean(), models).floats.tolist() == [4.0, -4.0]


def test_a_number_of_uploads_is_left_out_at_each_end() -> None:
    """Two of seven at each end: (3 + 4 + 8) / 3 = 5."""
    models = [small_model([value]) for value in (8.0, -9.0, 3.0, 1.0, 99.0, 50.0, 4.0)]
    assert mean_of(TrimmedMean(trim=2), models).floats[0] == 5.0


@pytest.mark.parametrize(
    ("trim", "uploads", "expected"),
    [
        (0.2, 5, 1),
        (0.2, 4, 1),
        (0.2, 6, 2),
        (0.1, 30, 3),
        (0.1, 31, 4),
        (0.07, 100, 7),
        (3, 100, 3),
    ],
)
def test_a_share_is_rounded_up(trim: float, uploads: int, expected: int) -> None:
    """One bad client of four is left out, too, because 0.2 · 4 is rounded up to 1."""
    assert TrimmedMean(trim=trim).trimmed(uploads) == expected


@given(st.floats(-(2.0**127), 2.0**127, width=32))
def test_one_of_five_cannot_move_the_mean_out_of_the_others_range(bad: float) -> None:
    honest = [small_model([value], [value]) for value in (1.0, 2.0, 3.0, 4.0)]
    merged = mean_of(TrimmedMean(), [*honest, small_model([bad], [bad])])
    assert bool(((merged.floats >= 1.0) & (merged.floats <= 4.0)).all())


def test_two_of_five_can() -> None:
    """Only one value is left out at each end: (1e9 + 1 + 2) / 3."""
    models = [small_model([value]) for value in (1e9, 1e9, 1.0, 2.0, 0.0)]
    assert mean_of(TrimmedMean(), models).floats[0] > 1e8


def test_values_of_any_size_do_not_overflow() -> None:
    models = [small_model([3e38])] * 5
    assert mean_of(TrimmedMean(), models).floats[0] == small_model([3e38]).floats[0]


@pytest.mark.parametrize(("trim", "uploads"), [(0.2, 2), (0.45, 2), (2, 4)])
def test_too_few_uploads(trim: float, uploads: int) -> None:
    with raises(TooFewUploadsError):
        mean_of(TrimmedMean(trim=trim), [small_model([1.0])] * uploads)


@pytest.mark.parametrize("trim", [0, 0.5, 0.7, 1.5, -1])
def test_a_wrong_share(trim: float) -> None:
    with raises(ConfigError):
        validate(TrimmedMean, {"trim": trim}, "mean")


@pytest.mark.parametrize("trim", [0.1, 0.2, 0.3, 0.4, 0.49])
def test_more_uploads_than_the_fewest_are_enough_too(trim: float) -> None:
    """At least one of n values remains, also where the share of n, rounded up, is n / 2."""
    mean = TrimmedMean(trim=trim)
    for uploads in range(3, 40):
        assert mean.shortage(uploads) is None
        assert 1 <= mean.trimmed(uploads) <= (uploads - 1) // 2
