"""Weighted numbers as words modulo 2⁶⁴, whose sum is exact.

A client with a share p of the total weight sends rint(p·x·2ᶠ) for each number x, where f is the
number of fraction bits. The shares of all clients that exchanged keys sum to 1, and |x| ≤ L with
L·2ᶠ = 2⁶², so that neither a word nor a sum of words leaves the range of int64: |Σ| ≤ 2⁶² + n/2 for
n clients. A client whose numbers are larger does not send them. The sum of the words therefore is
the sum of the integers, and the weighted mean over a set S of clients, (Σ words)/(2ᶠ·Σ p), differs
from the exact mean by at most |S|/2 steps of 2⁻ᶠ/Σ p, in addition to rounding errors of float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedssl.core.errors import ClientError
from fedssl.flower.secure_aggregation.masks import WORD, Words

RANGE_BITS = 62  # of the largest word
BLOCK = 2**16  # numbers that are converted at a time


@dataclass(frozen=True)
class FixedPoint:
    """Conversion between numbers and words."""

    fraction_bits: int

    @property
    def limit(self) -> float:
        """The largest absolute value of a number."""
        return 2.0 ** (RANGE_BITS - self.fraction_bits)

    @property
    def step(self) -> float:
        """The distance between numbers with a share of 1."""
        return 2.0**-self.fraction_bits

    def encode(self, values: NDArray[np.generic], share: float, words: Words) -> None:
        """Write rint(share · value · 2ᶠ) to `words`; raises ClientError outside the range."""
        if not 0 < share <= 1:
            raise ValueError(f"a share of {share} is not above 0 and at most 1")
        for start in range(0, len(values), BLOCK):
            numbers = values[start : start + BLOCK].astype(np.float64)
            if not bool((np.abs(numbers) <= self.limit).all()):  # False for NaN
                raise ClientError(
                    f"its upload has a value above {self.limit:.7g} or one that is not finite, "
                    "which a secure sum cannot contain"
                )
            numbers *= share
            numbers *= 2.0**self.fraction_bits
            integers = np.rint(numbers).astype(np.int64)
            words[start : start + BLOCK] = integers.view(np.uint64)

    def decode(self, words: Words, share: float) -> NDArray[np.float64]:
        """Return the means from a sum of words of clients with this share in total."""
        numbers = words.astype(WORD, copy=False).view(np.int64).astype(np.float64)
        numbers *= self.step
        numbers /= share
        return numbers


FLOATS = FixedPoint(40)  # up to 2²² = 4,194,304 in steps of 9·10⁻¹³
COUNTERS = FixedPoint(16)  # up to 2⁴⁶, the sum exact to 10⁻⁵ of a count
