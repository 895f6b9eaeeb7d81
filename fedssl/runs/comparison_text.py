"""The texts of a comparison: means, gains and intervals, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence

from fedssl.evaluation.advice import PROBE_NAMES
from fedssl.evaluation.intervals import Interval
from fedssl.evaluation.verdict import signed
from fedssl.runs.compare import (
    Group,
    count_test_images,
    gain_over_alone,
    paired_difference,
    seed_differences,
    with_shared_seeds,
)

PROBES = {"knn": "kNN", "linear": "linear"}  # of a finished run, with the headings of their columns
BARS = "95% interval over test images"


def mean_text(group: Group, probe: str) -> str:
    """Return "81.2 ± 0.4", or "81.2" for one seed."""
    text = f"{group.mean(probe):.1f}"
    std = group.std(probe)
    if std is not None:
        text += f" ± {std:.1f}"
    return text


def gain_text(first: Group, group: Group, probe: str) -> str:
    """Return "+0.8 (−0.4 … +2.0)"; the difference alone if test images cannot be paired."""
    if group is first:
        return ""
    gain = paired_difference(first, group, probe)
    if gain is None:
        before, after = with_shared_seeds(first, group)
        return signed(after.mean(probe) - before.mean(probe))
    return interval_text(gain)


def interval_text(gain: Interval | None) -> str:
    """Return "+0.8 (−0.4 … +2.0)"; "" for None."""
    if gain is None:
        return ""
    return f"{signed(gain.estimate)} ({signed(gain.low)} … {signed(gain.high)})"


def any_alone(groups: Sequence[Group], probe: str) -> bool:
    """True if the clients of some runs were also trained alone."""
    return any(gain_over_alone(group, probe) is not None for group in groups)


def seed_gains_text(first: Group, group: Group, probe: str) -> str:
    """Return the lowest and the highest gain of single seeds, if both groups have two of them."""
    gains = seed_differences(first, group, probe)
    if group is first or len(gains) < 2:
        return ""
    return f"{signed(min(gains))} … {signed(max(gains))}"


def explanation(groups: Sequence[Group], probe: str) -> str:
    """Return the lines below the table."""
    text = "accuracy in %, mean ± standard deviation over seeds"
    if any_alone(groups, probe):
        text += (
            f"\nover clients alone: the gain of each row over its own clients that train alone, by "
            f"{PROBE_NAMES[probe]}, with a 95% interval over test images"
        )
    if len(groups) == 1:
        return text
    images = "test images"
    count = count_test_images(groups[0], probe)
    if count is not None:
        images = f"{count:,} test images"
    return (
        f"{text}\ngain over the first row by {PROBE_NAMES[probe]} on the same {images}, for seeds "
        "that both have\nthe interval covers the choice of test images; the gain by seed shows how "
        "much seeds matter"
    )
