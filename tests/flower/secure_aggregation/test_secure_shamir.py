"""t shares restore a secret, and fewer do not."""

from __future__ import annotations

import secrets
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedssl.flower.secure_aggregation.shamir import (
    PRIME,
    SECRET_BYTES,
    SHARE_BYTES,
    restore_secret,
    share_secret,
)

pytestmark = pytest.mark.rows("C8")

SECRETS = st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES)


def test_a_line_through_two_points() -> None:
    """With t = 2 a share is s + a·x: those at 1 and 2 give s = 2·y₁ − y₂."""
    secret = secrets.token_bytes(SECRET_BYTES)
    shares = share_secret(secret, 2, [1, 2])
    expected = (2 * shares[1] - shares[2]) % PRIME
    assert expected == int.from_bytes(secret, "big")
    assert restore_secret(shares) == secret


@given(SECRETS, st.integers(1, 7), st.integers(0, 5))
def test_any_t_shares_restore_the_secret(secret: bytes, threshold: int, more: int) -> None:
    shares = share_secret(secret, threshold, range(1, threshold + more + 1))
    chosen = dict(list(shares.items())[-threshold:])
    assert restore_secret(chosen) == secret
    assert restore_secret(shares) == secret


def test_fewer_shares_do_not() -> None:
    """Of 5 shares with t = 3, no pair restores the secret: the result is a random element, which is
    too large for a secret but for a chance of 2⁻²⁶⁵."""
    secret = secrets.token_bytes(SECRET_BYTES)
    shares = share_secret(secret, 3, range(1, 6))
    for pair in combinations(shares, 2):
        with pytest.raises(ValueError, match="do not restore"):
            restore_secret({point: shares[point] for point in pair})
    for three in combinations(shares, 3):
        assert restore_secret({point: shares[point] for point in three}) == secret


def test_shares_fit_their_bytes() -> None:
    assert (PRIME - 1).bit_length() <= 8 * SHARE_BYTES
    assert 2 ** (8 * SECRET_BYTES) < PRIME


@pytest.mark.parametrize(
    ("secret", "threshold", "points"),
    [(b"short", 2, [1, 2, 3]), (bytes(32), 4, [1, 2, 3]), (bytes(32), 1, [0]), (bytes(32), 0, [1])],
)
def test_impossible_sharings_are_rejected(secret: bytes, threshold: int, points: list[int]) -> None:
    with pytest.raises(ValueError, match=r"32 bytes|does not fit|above 0"):
        share_secret(secret, threshold, points)
