"""The verdict on a run: what federated training gained, with the uncertainty of the test images."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedssl.evaluation import advice
from fedssl.evaluation.advice import PROBE_NAMES, UNKNOWN, Compared, LabelCounts
from fedssl.evaluation.intervals import Interval, accuracy_interval, difference_interval
from fedssl.evaluation.outcomes import Outcomes
from fedssl.evaluation.score import rounded

THIS_RUN = "this run"
# Rows that a run is compared with, in the order of interest, as the verdict calls them.
AGAINST = {
    "start": "the weights that training started from",
    "isolated": "clients that train alone",
    "random": "an untrained backbone",
    "centralized": "training on all images in one place",
}
# By the words that begin a verdict.
CLAUSES = {
    "better than": "it is better",
    "worse than": "it is worse",
    "no clear difference from": "there is no clear difference",
}
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
    labels: LabelCounts = UNKNOWN

    @property
    def advice(self) -> list[str]:
        """What to do about questions that a verdict leaves open, in a sentence each."""
        sentences: list[str | None] = []
        if self.accuracies[THIS_RUN][self.probe].std is None:
            sentences.append("--seeds 3 shows the spread over seeds")
        baseline = next(iter(self.gains), "")
        if baseline:
            sentences.append(advice.more_seeds(self.gains[baseline][self.probe].seeds))
        near_100 = [row for row in dict.fromkeys([baseline, "random"]) if self._saturated(row)]
        if near_100:
            names = list(map(AGAINST.__getitem__, near_100))
            sentences.append(advice.saturated(names, self.probe, self.labels))
        if baseline and baseline not in near_100:
            sentences.append(self._more_images(baseline))
        if "random" in self.gains and "random" not in near_100:
            sentences.append(advice.untrained(self._compared("random"), self.probe, self.labels))
        return list(filter(None, sentences))

    def _more_images(self, baseline: str) -> str | None:
        """Return what would show a difference from a baseline; None if the interval shows one."""
        gain = self.gains[baseline][self.probe].interval
        if gain.excludes_zero:
            return None
        return advice.more_images(gain, self.test_images, self.labels)

    def _saturated(self, baseline: str) -> bool:
        """True if the run and a baseline classify almost all images, and no difference is clear."""
        if baseline not in self.gains or self.gains[baseline][self.probe].interval.excludes_zero:
            return False
        for row in (THIS_RUN, baseline):
            accuracy = self.accuracies[row][self.probe].interval.estimate
            if not advice.near_100(accuracy, self.test_images):
                return False
        return True

    def _compared(self, baseline: str) -> dict[str, Compared]:
        compared = {}
        for probe, gain in self.gains[baseline].items():
            own = self.accuracies[THIS_RUN][probe].interval.estimate
            other = self.accuracies[baseline][probe].interval.estimate
            compared[probe] = Compared(own, other, gain.interval)
        return compared

    @property
    def sentence(self) -> str:
        """The verdict as one sentence, by the first baseline in the order of interest."""
        if not self.gains:
            return self._accuracy_sentence()
        baseline = next(iter(self.gains))
        gain = self.gains[baseline][self.probe]
        others = {name: figure.interval for name, figure in self.gains[baseline].items()}
        return (
            f"{judgement(gain.interval)} {AGAINST[baseline]}: "
            f"{signed(gain.interval.estimate)} points by {PROBE_NAMES[self.probe]}"
            f"{_seed_text(gain)}, {self.test_images:,} test images, 95% interval "
            f"{ends(gain.interval)} {_coverage(gain)}{disagreement(others, self.probe)}"
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


def disagreement(gains: Mapping[str, Interval], decides: str) -> str:
    """Return the gains by other probes that lead to another conclusion, or ""."""
    text = ""
    for probe, gain in gains.items():
        if judgement(gain) == judgement(gains[decides]):
            continue
        text += (
            f"; by {PROBE_NAMES[probe]} {CLAUSES[judgement(gain)]}: {signed(gain.estimate)} "
            f"points, 95% interval {ends(gain)}"
        )
    return text


def ends(gain: Interval) -> str:
    """Return the ends of the interval of a difference: "-0.5 … +4.0"."""
    return f"{signed(gain.low)} … {signed(gain.high)}"


def line(values: Mapping[str, Any]) -> str:
    """Return the verdict of results.json as a line; without a baseline it is a mere result."""
    if not values.get("gains"):
        return f"result: {values['sentence']}"
    return f"verdict: {values['sentence']}"


def signed(points: float) -> str:
    """Return percentage points with their sign and one decimal: "+0.8", and "0.0" for about 0."""
    text = f"{points:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def judge(seeds: Sequence[Outcomes], labels: LabelCounts = UNKNOWN) -> Verdict:
    """Return the verdict on a run, by the outcomes of each of its seeds.

    `labels` are the images that probes learned from; advice depends on them. The linear probe
    decides if it was measured: it is what most users do with a backbone.
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
        labels=labels,
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
