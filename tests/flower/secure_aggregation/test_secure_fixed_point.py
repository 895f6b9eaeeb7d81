"""Numbers as words: the rounding error, the range, and sums that are exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
from error_messages import raises
from hypothesis import given
from hypothesis import strategies as st

from fedssl.core.errors import ClientError
from fedssl.flower.secure_aggregation.fixed_point import COUNTERS, FLOATS, FixedPoint
from fedssl.flower.secure_aggregation.masks import Words

pytestmark = pytest.mark.rows("C8")

SHARES = st.floats(1e-6, 1.0)
NUMBERS = st.floats(-FLOATS.limit, FLOATS.limit, width=32)


def _encoded(numbers: FixedPoint, values: list[float], share: float) -> Words:
    words = np.empty(len(values), np.uint64)
    numbers.encode(np.array(values), share, words)
    return words


def test_words_by_hand() -> None:
    """With a share of 1/4 and 40 fraction bits, 1 is 2³⁸; −1 is its two's complement."""
    words = _encoded(FLOATS, [1.0, -1.0, 0.0, 4194304.0], 0.25)
    assert words.tolist() == [2**38, 2**64 - 2**38, 0, 2**60]
    assert FLOATS.decode(words, 0.25).tolist() == [1.0, -1.0, 0.0, 4194304.0]


@given(st.lists(NUMBERS, min_size=1, max_size=20), SHARES)
def test_a_number_is_off_by_half_a_step_at_most(values: list[float], share: float) -> None:
    """And by the rounding of three float64 operations."""
    decoded = FLOATS.decode(_encoded(FLOATS, values, share), share)
    for value, back in zip(values, decoded, strict=True):
        assert abs(back - value) <= FLOATS.step / share / 2 + abs(value) * 4 * 2**-53


@given(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=2, max_size=9), st.randoms())
def test_a_sum_of_words_is_the_sum_of_the_integers(rows: list[list[float]], random: object) -> None:
    """In Python's integers, which do not overflow; also if all values are at the limit."""
    weights = [random.random() + 0.01 for _ in rows]  # type: ignore[attr-defined]
    shares = [weight / math.fsum(weights) for weight in weights]
    total = np.zeros(3, np.uint64)
    exact = [0, 0, 0]
    for row, share in zip(rows, shares, strict=True):
        words = _encoded(FLOATS, row, share)
        total += words
        for i, word in enumerate(words.view(np.int64).tolist()):
            exact[i] += word
    assert total.view(np.int64).tolist() == exact


@pytest.mark.parametrize("numbers", [FLOATS, COUNTERS])
@pytest.mark.parametrize("clients", [3, 1000])
def test_sums_at_the_limit_do_not_overflow(numbers: FixedPoint, clients: int) -> None:
    total = np.zeros(2, np.uint64)
    for _ in range(clients):
        total += _encoded(numbers, [numbers.limit, -numbers.limit], 1 / clients)
    highest, lowest = numbers.decode(total, 1.0)
    assert highest == pytest.approx(numbers.limit, rel=1e-9)
    assert lowest == pytest.approx(-numbers.limit, rel=1e-9)


@pytest.mark.parametrize("value", [4194304.5, -4194305.0, math.inf, -math.inf, math.nan, 1e300])
def test_numbers_outside_the_range_are_not_sent(value: float) -> None:
    with raises(ClientError):
        _encoded(FLOATS, [0.0] * 70_000 + [value], 0.5)


def test_counts_are_exact_up_to_their_limit() -> None:
    """2³⁰ batches at 1,000 clients of equal weight: the mean is off by less than half a count."""
    total = np.zeros(1, np.uint64)
    for _ in range(1000):
        words = np.empty(1, np.uint64)
        COUNTERS.encode(np.array([2**30 + 1]), 0.001, words)
        total += words
    assert np.rint(COUNTERS.decode(total, 1.0)).tolist() == [2**30 + 1]


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, math.nan])
def test_shares_are_above_0_and_at_most_1(share: float) -> None:
    with pytest.raises(ValueError, match="is not above 0"):
        _encoded(FLOATS, [1.0], share)
