"""Gaussian noise from the operating system's secret random numbers.

The run's seed is public, so noise must not come from it. Box & Muller's transform gives a pair of
Gaussian numbers: a point at a random angle, whose radius r has r² = −2 ln u of a uniform number u.

The caller rounds to a grid that does not depend on the data, so that low-order bits reveal nothing
(Mironov, "On significance of the least significant bits for differential privacy", CCS 2012). For
that, radii must be much closer to each other than the steps of the grid, also near their ends:
otherwise some pairs cannot be reached, and a pair shows for certain which sum it was not added to.
Of multiples of 2⁻⁶⁴, the radii beyond 6.9 standard deviations are farther apart than 2⁻³² of one;
of float64 numbers near u = 1, those below 2⁻²¹. Therefore the distance from u to the nearer one of
0 and 1 has 127 bits, and is as precise as a float64 number can be: radii differ by at most 2⁻⁵² /
r.

Departures from a real Gaussian: float64 arithmetic, and no value beyond √(2·128·ln 2) = 13.3
standard deviations, which a Gaussian exceeds with a probability of 2·10⁻⁴⁰.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

_BITS = 64
_HALF = np.uint64(1 << (_BITS - 1))


def secret_gaussians(count: int) -> npt.NDArray[np.float64]:
    """Return independent standard Gaussian numbers (count,), different in every call."""
    pairs = (count + 1) // 2
    radius = _log_uniforms(pairs)
    radius *= -2
    np.sqrt(radius, out=radius)
    angle = _bits(pairs).astype(np.float64)
    angle *= 2 * np.pi * 2.0**-_BITS
    values = np.empty((2, pairs))
    np.cos(angle, out=values[0])
    np.sin(angle, out=values[1])
    values *= radius
    return values.reshape(-1)[:count]


def _log_uniforms(count: int) -> npt.NDArray[np.float64]:
    """Return ln u of uniform numbers u in (0, 1), precise near both ends."""
    high = _bits(count)
    near_one = high >= _HALF
    distance = _bits(count).astype(np.float64)  # to the nearer end: 63 bits and 64 lower ones
    distance += 1
    distance *= 2.0**-_BITS
    distance += (high % _HALF).astype(np.float64)
    distance *= 2.0**-_BITS
    logarithms = np.log(distance)
    logarithms[near_one] = np.log1p(-distance[near_one])
    return logarithms


def _bits(count: int) -> npt.NDArray[np.uint64]:
    """Return secret random integers of 64 bits (count,)."""
    return np.frombuffer(os.urandom(count * _BITS // 8), np.uint64)
