"""Gaussian noise from the operating system's secret random numbers.

The run's seed is public, so noise must not come from it. 64 random bits give a uniform number each,
and Box & Muller's transform two Gaussian numbers of two uniform ones.

Departures from a real Gaussian: float64 arithmetic, and no value beyond √(2·64·ln 2) = 9.4 standard
deviations, which a Gaussian exceeds with a probability of 5·10⁻²¹. The caller rounds to a grid that
does not depend on the data, so that low-order bits reveal nothing (Mironov, "On significance of the
least significant bits for differential privacy", CCS 2012).
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

_BITS = 64


def secret_gaussians(count: int) -> npt.NDArray[np.float64]:
    """Return independent standard Gaussian numbers (count,), different in every call."""
    pairs = (count + 1) // 2
    radius = _uniforms(pairs)
    np.log(radius, out=radius)
    radius *= -2
    np.sqrt(radius, out=radius)
    angle = _uniforms(pairs)
    angle *= 2 * np.pi
    values = np.empty((2, pairs))
    np.cos(angle, out=values[0])
    np.sin(angle, out=values[1])
    values *= radius
    return values.reshape(-1)[:count]


def _uniforms(count: int) -> npt.NDArray[np.float64]:
    """Return uniform numbers in (0, 1], the smallest 2⁻⁶⁴."""
    bits = np.frombuffer(os.urandom(count * _BITS // 8), np.uint64)
    uniforms = bits.astype(np.float64)
    uniforms += 1
    uniforms *= 2.0**-_BITS
    return uniforms
