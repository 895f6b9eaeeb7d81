"""Compare finished runs: group seeds, compute means and intervals, pair their test images."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedssl.core.console import ignore_message
from fedssl.core.errors import ConfigError
from fedssl.evaluation.advice import PROBE_NAMES
from fedssl.evaluation.intervals import Interval, accuracy_interval, difference_interval
from fedssl.evaluation.outcomes import read_outcomes
from fedssl.evaluation.verdict import ONE_SEED, disagreement, ends, judgement, signed
from fedssl.runs.directories import training_values
from fedssl.runs.rounds_log import logged_knn, logged_knn_on, read_rounds
from fedssl.runs.run_labels import label, labelled_keys, varying_keys
from fedssl.runs.summary import RunSummary

THIS_RUN = "this run"
ALONE = "isolated"  # the baseline of clients that train alone


class CurvePoint(NamedTuple):
    """The kNN accuracy after a round: mean, lowest and highest over seeds."""

    round: int
    mean: float
    low: float
    high: float


class Group(NamedTuple):
    """Runs that differ in their seeds only."""

    label: str
    values: Mapping[str, Any]  # the settings in which groups differ
    runs: list[RunSummary]

    def accuracies(self, probe: str) -> list[float]:
        """Return the accuracy of each run in percent."""
        measured = []
        for run in self.runs:
            accuracy = run.accuracy(probe)
            if accuracy is not None:
                measured.append(accuracy)
        return measured

    def mean(self, probe: str) -> float:
        """Return the mean accuracy over seeds in percent."""
        return statistics.fmean(self.accuracies(probe))

    def std(self, probe: str) -> float | None:
        """Return the standard deviation over seeds; None for one run."""
        accuracies = self.accuracies(probe)
        if len(accuracies) < 2:
            return None
        return statistics.stdev(accuracies)

    @property
    def seeds(self) -> list[int]:
        """The seed of each run."""
        return [run.experiment.seed for run in self.runs]

    @property
    def seconds(self) -> float:
        """The mean training time."""
        return statistics.fmean(run.seconds for run in self.runs)


def group_runs(runs: Sequence[RunSummary]) -> list[Group]:
    """Return the runs in groups that differ in their seeds only, in the order given."""
    settings = []
    for run in runs:
        values = training_values(run.experiment)
        del values["seed"]
        settings.append(values)
    varying = varying_keys(settings)
    shown = labelled_keys(varying, settings)
    groups: dict[str, Group] = {}
    for run, values in zip(runs, settings, strict=True):
        own = {key: values[key] for key in varying if key in values}
        name = label(values, shown) or _kind(values)
        group = groups.setdefault(json.dumps(own), Group(name, own, []))
        _check_new_seed(group, run)
        group.runs.append(run)
    return list(groups.values())


def _check_new_seed(group: Group, run: RunSummary) -> None:
    """Raise ConfigError if the group has a run with this seed: it would count twice."""
    for known in group.runs:
        if known.experiment.seed == run.experiment.seed:
            raise ConfigError(
                f"{known.folder} and {run.folder} have the same settings and the same seed: "
                "name only one of them"
            )


def _kind(values: Mapping[str, Any]) -> str:
    """Return a label for runs that all have the same settings: "simclr × fedavg × star"."""
    keys = ("method.name", "algorithm.name", "topology.name")
    return " × ".join(map(values.__getitem__, keys))


def swept_key(groups: Sequence[Group]) -> str | None:
    """Return the one numeric setting in which the groups differ; None if there is none."""
    if len(groups) < 2 or len(groups[0].values) != 1:
        return None
    key = next(iter(groups[0].values))
    for group in groups:
        value = group.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
    return key


def knn_curve(group: Group) -> list[CurvePoint]:
    """Return the kNN accuracy after those rounds in which it was measured for every seed."""
    curves = list(map(knn_by_round, group.runs))
    points = []
    for number in sorted(set.intersection(*map(set, curves))):
        accuracies = [curve[number] for curve in curves]
        mean = statistics.fmean(accuracies)
        points.append(CurvePoint(number, mean, min(accuracies), max(accuracies)))
    return points


def knn_by_round(run: RunSummary) -> dict[int, float]:
    """Return the kNN accuracies of a run that were measured with the settings of its results.

    Round 0 is before training, if measured.
    """
    accuracies: dict[int, float] = {}
    for name in ("start", "random"):
        untrained = run.results["table"].get(name, {}).get("knn")
        if untrained is not None:
            accuracies.setdefault(0, untrained["mean"])
    for line in read_rounds(run.folder / "rounds.jsonl", ignore_message):
        accuracy = logged_knn(line, run.results)
        if accuracy is not None:
            accuracies[line["round"]] = accuracy
    final = run.accuracy("knn")
    if final is not None:
        accuracies[run.rounds] = final
    return accuracies


def knn_on_by_round(run: RunSummary) -> dict[int, float]:
    """Return the kNN accuracies on the images of `probe.on` that its results were measured on."""
    accuracies: dict[int, float] = {}
    for line in read_rounds(run.folder / "rounds.jsonl", ignore_message):
        accuracy = logged_knn_on(line, run.results)
        if accuracy is not None:
            accuracies[line["round"]] = accuracy
    final = run.results.get("on", {}).get("table", {}).get(THIS_RUN)
    if final is not None:
        accuracies[run.rounds] = final["knn"]["mean"]
    return accuracies


def group_interval(group: Group, probe: str) -> Interval | None:
    """Return the mean accuracy over seeds with its interval; None without saved outcomes."""
    outcome = _mean_outcome(group, probe)
    if outcome is None:
        return None
    return accuracy_interval(outcome)


def with_shared_seeds(first: Group, other: Group) -> tuple[Group, Group]:
    """Return two groups with the runs whose seeds both have, in the same order.

    A seed decides the first weights and which images are labelled, so that runs with one seed
    differ less by chance. Groups that share no seed are returned unchanged.
    """
    by_seed = {run.experiment.seed: run for run in other.runs}
    firsts = []
    others = []
    for run in first.runs:
        if run.experiment.seed in by_seed:
            firsts.append(run)
            others.append(by_seed[run.experiment.seed])
    if not firsts:
        return first, other
    return first._replace(runs=firsts), other._replace(runs=others)


def paired_difference(first: Group, other: Group, probe: str) -> Interval | None:
    """Return how much better the other group is on the same test images, averaged over seeds.

    Seeds that only one group has are left out, unless the groups share none. None if the outcomes
    of single images were not saved, as by earlier versions.
    """
    first, other = with_shared_seeds(first, other)
    before = _mean_outcome(first, probe)
    after = _mean_outcome(other, probe)
    if before is None or after is None:
        return None
    return difference_interval(after, before)


def seed_differences(first: Group, other: Group, probe: str) -> list[float]:
    """Return how much better the other group is, for each seed that both groups have."""
    first, other = with_shared_seeds(first, other)
    if first.seeds != other.seeds:
        return []
    pairs = zip(first.accuracies(probe), other.accuracies(probe), strict=True)
    return [after - before for before, after in pairs]


def conclusion(first: Group, other: Group, probes: Sequence[str]) -> str:
    """Return one sentence about how the other group differs from the first.

    The last probe decides. A difference is claimed only if its interval excludes 0, as in the
    verdict on a run.
    """
    probe = probes[-1]
    gains = {name: paired_difference(first, other, name) for name in probes}
    gain = gains[probe]
    if gain is None:
        before, after = with_shared_seeds(first, other)
        points = signed(after.mean(probe) - before.mean(probe))
        return (
            f"{other.label}: {points} points from {first.label} by {PROBE_NAMES[probe]}, without "
            "an interval: an earlier version did not save which test images are classified "
            "correctly"
        )
    known = {name: each for name, each in gains.items() if each is not None}
    return (
        f"{other.label}: {judgement(gain)} {first.label}: {signed(gain.estimate)} points by "
        f"{PROBE_NAMES[probe]}, {count_test_images(first, probe):,} test images, 95% interval "
        f"{ends(gain)} {_coverage(first, other, probe)}{disagreement(known, probe)}"
    )


def _coverage(first: Group, other: Group, probe: str) -> str:
    """Return what the interval of a difference covers, and the difference for each seed."""
    gains = seed_differences(first, other, probe)
    if len(gains) == 1:
        return ONE_SEED
    if not gains:
        return "over test images; the rows share no seed"
    return f"over test images; by seed {', '.join(map(signed, gains))}"


def count_test_images(group: Group, probe: str) -> int | None:
    """Return the number of test images; None without saved outcomes."""
    outcome = _mean_outcome(group, probe)
    if outcome is None:
        return None
    return len(outcome)


def gain_over_alone(group: Group, probe: str) -> Interval | None:
    """Return how much better the runs are than their clients alone, averaged over seeds.

    None if clients did not train alone for every run.
    """
    together = _mean_outcome(group, probe)
    alone = _mean_outcome(group, probe, ALONE)
    if together is None or alone is None:
        return None
    return difference_interval(together, alone)


def _mean_outcome(group: Group, probe: str, row: str = THIS_RUN) -> Tensor | None:
    """Return for each test image the share of seeds that are right; None without outcomes."""
    outcomes = []
    for run in group.runs:
        outcome = read_outcomes(run.folder).get((row, probe))
        if outcome is None:
            return None
        outcomes.append(outcome)
    return torch.stack(outcomes).mean(0)
