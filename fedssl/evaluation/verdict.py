"""The verdict on a run: what federated training gained, with the uncertainty of the test images."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedssl.evaluation.intervals import Interval, accuracy_interval, difference_interval
from fedssl.evaluation.outcomes import Outcomes
from fedssl.evaluation.score import rounded

THIS_RUN = "this run"
# Rows that a run is compared with, in the order of interest, as the verdict calls them.
AGAINST = {
    "isolated": "clients that train alone",
    "random": "an untrained backbone",
    "centralized": "training on all images in one place",
}
NARROW = 2.0  # points on either side: an interval that shows gains of practical size
PROBE_NAMES = {"knn": "kNN", "linear": "the linear probe"}
ONE_SEED = "over test images, one seed"


class Figure(NamedTuple):
    """An accuracy, or a gain in accuracy, over one seed or several."""

    interval: Interval  # of the mean over seeds; its ends are those of other test images
    seeds: tuple[float, ...]  # the estimate of each seed

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds; None for one seed."""
        if len(self.seeds) < 2:
            return None
        return statistics.stdev(self.seeds)

    def values(self) -> dict[str, Any]:
        """Return the figure as plain values."""
        plain: dict[str, Any] = {}
        for key, value in self.interval._asdict().items():
            plain[key] = rounded(value)
        if self.std is not None:
            plain["std"] = rounded(self.std)
            plain["seeds"] = list(map(rounded, self.seeds))
        return plain


Figures = dict[str, dict[str, Figure]]  # by row and probe


class Verdict(NamedTuple):
    """The comparison of a run with its baselines, on the same test images."""

    probe: str  # the one that decides
    test_images: int
    accuracies: Figures
    gains: Figures  # of this run over each baseline

    @property
    def advice(self) -> list[str]:
        """What to do about questions that a verdict leaves open, in a sentence each."""
        sentences = []
        if self.accuracies[THIS_RUN][self.probe].std is None:
            sentences.append("--seeds 3 shows the spread over seeds")
        gains = {row: probes[self.probe].interval for row, probes in self.gains.items()}
        if gains and not next(iter(gains.values())).excludes_zero:
            sentences.append(self._more_images(next(iter(gains.values()))))
        if "random" in gains and not gains["random"].low > 0:
            sentences.append(
                "the backbone is not clearly better than an untrained one: train more rounds, or look "
                "at its views with `fedssl views`"
            )
        return sentences

    def _more_images(self, gain: Interval) -> str:
        """Return how many test images would narrow an interval to ±2 points.

        The width of an interval is proportional to 1/√n.
        """
        half_width = (gain.high - gain.low) / 2
        if half_width <= NARROW:
            return "more labelled test images narrow the interval"
        needed = self.test_images * (half_width / NARROW) ** 2
        digits = 1 - math.floor(math.log10(needed))  # two significant ones
        return (
            f"about {round(needed, digits):,.0f} labelled test images would narrow the interval to "
            f"±{NARROW:g} points"
        )

    @property
    def sentence(self) -> str:
        """The verdict as one sentence, by the first baseline in the order of interest."""
        if not self.gains:
            return self._accuracy_sentence()
        baseline = next(iter(self.gains))
        gain = self.gains[baseline][self.probe]
        ends = f"{signed(gain.interval.low)} … {signed(gain.interval.high)}"
        return (
            f"{judgement(gain.interval)} {AGAINST[baseline]}: "
            f"{signed(gain.interval.estimate)} points by {PROBE_NAMES[self.probe]}"
            f"{_seed_text(gain)}, {self.test_images:,} test images, 95% interval {ends} "
            f"{_coverage(gain)}"
        )

    def _accuracy_sentence(self) -> str:
        figure = self.accuracies[THIS_RUN][self.probe]
        accuracy = figure.interval
        return (
            f"{accuracy.estimate:.1f}% by {PROBE_NAMES[self.probe]}{_seed_text(figure)}, "
            f"{self.test_images:,} test images, 95% interval {accuracy.low:.1f} … "
            f"{accuracy.high:.1f} {_coverage(figure)}; there is no baseline to compare with"
        )

    def values(self) -> dict[str, Any]:
        """Return the verdict as plain values for results.json."""
        return {
            "sentence": self.sentence,
            "advice": self.advice,
            "probe": self.probe,
            "test_images": self.test_images,
            "accuracies": _plain(self.accuracies),
            "gains": _plain(self.gains),
        }


def _seed_text(figure: Figure) -> str:
    """Return how many seeds a mean is over, and their spread; "" for one seed."""
    if figure.std is None:
        return ""
    return f" (mean of {len(figure.seeds)} seeds, std {figure.std:.1f})"


def _coverage(figure: Figure) -> str:
    """Return what an interval covers: not the spread over seeds."""
    if figure.std is None:
        return ONE_SEED
    return "over test images, not over seeds"


def _plain(figures: Figures) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for row, probes in figures.items():
        plain[row] = {probe: figure.values() for probe, figure in probes.items()}
    return plain


def judgement(gain: Interval) -> str:
    """Return the words that begin a verdict: a difference is claimed if the interval shows it."""
    if not gain.excludes_zero:
        return "no clear difference from"
    return "better than" if gain.estimate > 0 else "worse than"


def signed(points: float) -> str:
    """Return percentage points with their sign and one decimal: "+0.8", and "0.0" for about 0."""
    text = f"{points:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def judge(seeds: Sequence[Outcomes]) -> Verdict:
    """Return the verdict on a run, by the outcomes of each of its seeds.

    The linear probe decides if it was measured: it is what most users do with a backbone.
    """
    probes = [probe for probe in PROBE_NAMES if (THIS_RUN, probe) in seeds[0]]
    baselines = [row for row in AGAINST if (row, probes[0]) in seeds[0]]
    accuracies: Figures = {}
    for row in (THIS_RUN, *baselines):
        accuracies[row] = {probe: _accuracy(seeds, row, probe) for probe in probes}
    gains: Figures = {}
    for row in baselines:
        gains[row] = {probe: _gain(seeds, row, probe) for probe in probes}
    return Verdict(
        probe=probes[-1],
        test_images=len(seeds[0][THIS_RUN, probes[0]]),
        accuracies=accuracies,
        gains=gains,
    )


def _accuracy(seeds: Sequence[Outcomes], row: str, probe: str) -> Figure:
    outcomes = [outcome[row, probe] for outcome in seeds]
    return Figure(accuracy_interval(_mean(outcomes)), tuple(map(_percent, outcomes)))


def _gain(seeds: Sequence[Outcomes], row: str, probe: str) -> Figure:
    own = [outcome[THIS_RUN, probe] for outcome in seeds]
    others = [outcome[row, probe] for outcome in seeds]
    by_seed = []
    for mine, other in zip(own, others, strict=True):
        by_seed.append(_percent(mine) - _percent(other))
    return Figure(difference_interval(_mean(own), _mean(others)), tuple(by_seed))


def _mean(outcomes: Sequence[Tensor]) -> Tensor:
    """Return for each test image the share of seeds, and of their models, that are right."""
    return torch.stack(list(outcomes)).mean(0)


def _percent(outcome: Tensor) -> float:
    return 100 * float(outcome.double().mean())
