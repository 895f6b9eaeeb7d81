"""Blocked arithmetic against the whole row, and both against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedssl.core.devices.precision import threads
from fedssl.core.state import arithmetic

LENGTHS = [0, 1, 7, 8, 9, 16, 50]


@pytest.fixture(autouse=True, params=[8, arithmetic.PIECE], ids=["many pieces", "one piece"])
def _piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "PIECE", request.param)


def random(length: int, seed: int = 0) -> Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", LENGTHS)
def test_a_sum_in_pieces_is_the_sum(length: int) -> None:
    a = random(length, 0)
    b = random(length, 1)
    total = arithmetic.scale(a, 0.3)
    assert total.dtype == torch.float64
    assert torch.equal(total, a.double() * 0.3)
    before = total.clone()
    arithmetic.add(total, [])
    assert torch.equal(total, before)
    arithmetic.add(total, [(b, 0.7), (a, 1.3)])
    assert torch.equal(total, before.add(b.double(), alpha=0.7).add(a.double(), alpha=1.3))
    assert torch.equal(arithmetic.divide(total, 1.7), (total / 1.7).float())


@given(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(1, 10**8))
def test_the_mean_of_one_is_itself(value: float, weight: int) -> None:
    values = torch.full((9,), value)
    assert torch.equal(arithmetic.divide(arithmetic.scale(values, weight), weight), values)


@pytest.mark.parametrize("length", LENGTHS)
def test_distance_and_finiteness_in_pieces(length: int) -> None:
    a = random(length, 0)
    b = random(length, 1)
    assert arithmetic.squared_distance(a, b).item() == pytest.approx(
        (a.double() - b.double()).square().sum().item(), rel=1e-6
    )
    assert arithmetic.finite(a)
    for position in range(length):
        for bad in (math.nan, math.inf, -math.inf):
            odd = a.clone()
            odd[position] = bad
            assert not arithmetic.finite(odd)
            assert not torch.isfinite(arithmetic.squared_distance(odd, b))


@pytest.mark.parametrize("_piece", [1 << 19], indirect=True)
def test_a_distance_does_not_depend_on_the_number_of_threads() -> None:
    """Plain sums of the same squares differ in their last bits."""
    rows = [random(length) for length in range(100_000, 500_000, 50_000)]
    distances = set()
    plain_sums = set()
    for count in (1, 2, 4):
        with threads(count):
            zero = [torch.zeros_like(row) for row in rows]
            pairs = list(zip(rows, zero, strict=True))
            distances.add(tuple(arithmetic.squared_distance(a, b).item() for a, b in pairs))
            plain_sums.add(tuple(row.square().sum().item() for row in rows))
            assert torch.get_num_threads() == count
    assert len(plain_sums) > 1
    assert len(distances) == 1


def test_a_sum_that_overflows_is_still_finite() -> None:
    assert arithmetic.finite(torch.full((50,), 3e38))


@given(
    st.lists(
        st.tuples(st.floats(-1e6, 1e6, width=32), st.integers(1, 10**6)), min_size=1, max_size=20
    )
)
def test_a_weighted_mean_is_exact_to_the_last_bit_but_one(terms: list[tuple[float, int]]) -> None:
    """Against fractions: float64 leaves an error far below a float32's, so only the last rounding
    shows.

    Each of n sums and products errs by 2⁻⁵³ of Σ w|x| at most; the rounding to float32 by 2⁻²⁴ of
    the result.
    """
    total = arithmetic.scale(torch.full((9,), terms[0][0]), terms[0][1])
    for value, weight in terms[1:]:
        arithmetic.add(total, [(torch.full((9,), value), weight)])
    sizes = sum(weight for _, weight in terms)
    result = Fraction(arithmetic.divide(total, sizes)[3].item())
    exact = sum(Fraction(value) * weight for value, weight in terms) / sizes
    spread = sum(abs(Fraction(value)) * weight for value, weight in terms) / sizes
    assert abs(result - exact) <= abs(exact) / 2**24 + 2 * len(terms) * spread / 2**53 + Fraction(
        1, 2**149
    )


def test_sums_of_thousands_of_terms_are_exact() -> None:
    """0.1 is no float32: ten thousand of them in single precision would be off by 1e-4."""
    tenth = torch.full((20,), 0.1)
    total = arithmetic.scale(tenth, 1.0)
    for _ in range(9_999):
        arithmetic.add(total, [(tenth, 1.0)])
    assert torch.equal(arithmetic.divide(total, 10_000), tenth)
