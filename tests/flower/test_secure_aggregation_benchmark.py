"""The benchmark of secure aggregation measures exact sums."""

from __future__ import annotations

import pytest

from benchmarks.secure_aggregation import Case, measure


@pytest.mark.parametrize("dropouts", [0, 1])
def test_the_measured_sums_are_exact(dropouts: int) -> None:
    """A masked upload has 8 bytes for each of 1,000 parameters, a few kB of keys and shares, and
    the dropout sends no upload."""
    figures = measure(Case(5, 1000, dropouts))
    assert figures["exact"]
    uploads = (5 - dropouts) / 5 * 8 * 1000
    assert uploads < figures["bytes_up"] < uploads + 5000
    assert figures["bytes_up_plain"] == 4000
