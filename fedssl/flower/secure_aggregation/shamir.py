"""Shamir's secret sharing over a prime field.

Shamir, "How to share a secret", Communications of the ACM 22 (11), 1979. A secret is the value at 0
of a random polynomial of degree t − 1, a share its value at another point: t shares determine the
polynomial, and fewer contain no information about the secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from functools import lru_cache

PRIME = 2**521 - 1  # a Mersenne prime above all secrets
SECRET_BYTES = 32
SHARE_BYTES = 66


def share_secret(secret: bytes, threshold: int, points: Collection[int]) -> dict[int, int]:
    """Return a share of the secret for each point, of which any `threshold` restore it."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 0 < threshold <= len(set(points)):
        raise ValueError(f"a threshold of {threshold} does not fit {len(points)} shares")
    if not all(0 < point < PRIME for point in points):
        raise ValueError("shares are at points above 0: the value at 0 is the secret")
    coefficients = [int.from_bytes(secret, "big")]
    for _ in range(threshold - 1):
        coefficients.append(secrets.randbelow(PRIME))
    return {point: _value_at(coefficients, point) for point in points}


def _value_at(coefficients: list[int], point: int) -> int:
    """Return the value of a polynomial, by Horner's scheme."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value


def restore_secret(shares: Mapping[int, int]) -> bytes:
    """Return the secret from `threshold` shares or more, by point.

    Raises ValueError if the shares are not of one secret, as far as the result shows it: with fewer
    shares than the threshold, it is a random element of the field.
    """
    points = tuple(sorted(shares))
    secret = 0
    for point, coefficient in zip(points, _coefficients_at_zero(points), strict=True):
        secret += shares[point] * coefficient
    secret %= PRIME
    if secret >> (8 * SECRET_BYTES):
        raise ValueError("these shares do not restore a secret")
    return secret.to_bytes(SECRET_BYTES, "big")


@lru_cache(maxsize=8)  # all secrets of a round are restored from the same clients' shares
def _coefficients_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange's coefficients, with which values at the points give the value at 0."""
    coefficients = []
    for point in points:
        numerator = 1
        denominator = 1
        for other in points:
            if other != point:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - point) % PRIME
        coefficients.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return tuple(coefficients)
