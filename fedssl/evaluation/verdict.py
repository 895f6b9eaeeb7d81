"""The verdict on a run: what federated training gained, with the uncertainty of the test images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedssl.evaluation.intervals import Interval, accuracy_interval, difference_interval
from fedssl.evaluation.score import Score

THIS_RUN = "this run"
# Rows that a run is compared with, in the order of interest, as the verdict calls them.
AGAINST = {
    "isolated": "each client training alone",
    "random": "an untrained backbone",
    "centralized": "training on all images in one place",
}


class Gain(NamedTuple):
    """How much better this run is than one other row, by one probe."""

    against: str
    probe: str
    difference: Interval


class Verdict(NamedTuple):
    """The comparison of a run with its baselines by its main probe."""

    probe: str
    test_images: int
    accuracy: Interval
    gains: tuple[Gain, ...]

    @property
    def sentence(self) -> str:
        """Return the verdict as one sentence."""
        images = f"{self.test_images:,} test images"
        if not self.gains:
            low, high = self.accuracy.low, self.accuracy.high
            return (
                f"{self.accuracy.estimate:.1f}% by {PROBE_NAMES[self.probe]} on {images}, "
                f"95% interval {low:.1f} … {high:.1f}; there is no baseline to compare with"
            )
        gain = self.gains[0]
        points = signed(gain.difference.estimate)
        interval = f"95% interval {signed(gain.difference.low)} … {signed(gain.difference.high)}"
        claim = f"{points} points over {AGAINST[gain.against]}"
        sentence = f"{claim} by {PROBE_NAMES[self.probe]}, {images}, {interval}"
        if not gain.difference.excludes_zero:
            sentence += ": too few test images to tell them apart"
        return sentence

    def values(self) -> dict[str, Any]:
        """Return the verdict as plain values for results.json."""
        return {
            "sentence": self.sentence,
            "probe": self.probe,
            "test_images": self.test_images,
            "accuracy": rounded(self.accuracy),
            "over": {gain.against: rounded(gain.difference) for gain in self.gains},
        }


PROBE_NAMES = {"linear": "the linear probe", "knn": "kNN"}


def signed(points: float) -> str:
    """Return percentage points with their sign and one decimal: "+0.8"."""
    return f"{points:+.1f}"


def rounded(interval: Interval) -> dict[str, float]:
    """Return an interval as plain values."""
    return {key: round(value, 2) for key, value in interval._asdict().items()}


def judge(rows: Mapping[str, Mapping[str, Score]]) -> Verdict:
    """Return the verdict on the scores of a run and its baselines.

    The linear probe decides if it was measured: it is what most users do with a backbone.
    """
    own = rows[THIS_RUN]
    probe = "linear" if "linear" in own else next(iter(own))
    correct = own[probe].correct
    gains = []
    for name in AGAINST:
        if name in rows:
            difference = difference_interval(correct, rows[name][probe].correct)
            gains.append(Gain(name, probe, difference))
    return Verdict(probe, len(correct), accuracy_interval(correct), tuple(gains))
