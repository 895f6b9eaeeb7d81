"""Advice on questions that a verdict leaves open, from the accuracies and the labelled images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedssl.evaluation.intervals import Interval

NARROW = 2.0  # points on either side: an interval that shows gains of practical size
# An accuracy with so few errors leaves no room for a difference: images, and their share.
MAX_ERRORS = 2
MIN_NEAR_100 = 95.0  # percent; of few test images, two errors are many
NEAR_100 = 99.0  # percent, whatever the number of errors
MIN_LABELS = 100  # with fewer, a tenth of them is no useful suggestion
FEW_LABELS = 500  # a linear classifier that learned from fewer may miss a better representation
PROBE_NAMES = {"knn": "kNN", "linear": "the linear probe"}


class LabelCounts(NamedTuple):
    """How many labelled images the probes learned from."""

    learned: Mapping[str, int]  # by probe
    halved: bool = False  # they are one half of the labelled test images

    def total(self, test_images: int) -> int:
        """Return the number of labelled test images that a user has collected."""
        if not self.halved:
            return test_images
        return test_images + max(self.learned.values(), default=test_images)


UNKNOWN = LabelCounts({})


class Compared(NamedTuple):
    """What one probe measured of a run and of a baseline, in percent."""

    own: float
    baseline: float
    gain: Interval


def near_100(accuracy: float, test_images: int) -> bool:
    """True if an accuracy in percent leaves at most a couple of errors on the test images."""
    errors = (100 - accuracy) / 100 * test_images
    return accuracy >= NEAR_100 or (accuracy >= MIN_NEAR_100 and errors <= MAX_ERRORS + 1e-6)


def more_seeds(gains: Sequence[float]) -> str | None:
    """Return how many seeds to train if those so far gain and lose; None if they agree."""
    if not min(gains) < 0 < max(gains):
        return None
    each = ", ".join(f"{gain:+.1f}" for gain in gains)
    count = max(5, 2 * len(gains))
    return f"the seeds do not agree ({each}): --seeds {count} would show more than new test images"


def more_images(gain: Interval, test_images: int, labels: LabelCounts = UNKNOWN) -> str:
    """Return how many labelled test images would narrow an interval to ±2 points.

    The width of an interval is proportional to 1/√n. If probes learn from one half of the labelled
    images, twice as many must be collected as are tested on.
    """
    half_width = (gain.high - gain.low) / 2
    if half_width <= NARROW:
        return "more labelled test images narrow the interval"
    needed = test_images * (half_width / NARROW) ** 2
    use = ""
    if labels.halved:
        needed *= 2
        use = "; half of them train the probes"
    digits = 1 - math.floor(math.log10(needed))  # two significant ones
    return (
        f"about {round(needed, digits):,.0f} labelled test images would narrow the interval to "
        f"±{NARROW:g} points (there are {labels.total(test_images):,}{use})"
    )


def saturated(baselines: Sequence[str], probe: str, labels: LabelCounts = UNKNOWN) -> str:
    """Return what to do if a run and some baselines classify almost every test image."""
    problem = (
        f"{' and '.join(['this run', *baselines])} are near 100% by {PROBE_NAMES[probe]}: this "
        "test cannot tell them apart"
    )
    learned = labels.learned.get(probe, 0)
    if probe != "linear" or learned < MIN_LABELS:
        return f"{problem}; try images or classes that are harder to tell apart"
    return f"{problem}; try fewer labels, --set probe.labels={learned // 10}"


def untrained(
    compared: Mapping[str, Compared], probe: str, labels: LabelCounts = UNKNOWN
) -> str | None:
    """Return advice if a probe shows no gain over an untrained backbone; None if all show one.

    `compared` are the measurements by probe; `probe` is the one that decides.
    """
    unclear = [name for name, values in compared.items() if not values.gain.low > 0]
    if not unclear:
        return None
    if len(unclear) == len(compared):
        return (
            "the backbone is not clearly better than an untrained one: train more rounds, or look "
            "at its views with `fedssl views`"
        )
    name = unclear[0]
    own = f"{compared[name].own:.1f}%"
    text = (
        f"by {PROBE_NAMES[name]} the backbone is not clearly better than an untrained one ({own}, "
        f"untrained {compared[name].baseline:.1f}%)"
    )
    if name != probe:
        return text
    others = [PROBE_NAMES[other] for other in compared if other not in unclear]
    text += f", but by {others[0]} it is: the probes disagree"
    learned = labels.learned.get(name)
    if learned is None or learned >= FEW_LABELS:
        return text
    return f"{text}, and {learned:,} labels may be too few for {PROBE_NAMES[name]}"
