"""Compare finished runs: group seeds, label runs by their differences, pair their test images."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedssl.core.errors import ConfigError
from fedssl.evaluation.intervals import Interval, difference_interval
from fedssl.evaluation.outcomes import read_outcomes
from fedssl.experiment.plain_values import flatten
from fedssl.runs.directories import training_values
from fedssl.runs.summary import RunSummary

THIS_RUN = "this run"


class Group(NamedTuple):
    """Runs that differ in their seeds only."""

    label: str
    values: Mapping[str, Any]  # the settings in which groups differ
    runs: Sequence[RunSummary]

    def accuracies(self, probe: str) -> list[float]:
        """Return the accuracy of each run in percent."""
        measured = [run.accuracy(probe) for run in self.runs]
        return [accuracy for accuracy in measured if accuracy is not None]

    def mean(self, probe: str) -> float:
        """Return the mean accuracy over seeds in percent."""
        return statistics.fmean(self.accuracies(probe))

    def std(self, probe: str) -> float | None:
        """Return the standard deviation over seeds; None for one run."""
        accuracies = self.accuracies(probe)
        return statistics.stdev(accuracies) if len(accuracies) > 1 else None


def check_comparable(runs: Sequence[RunSummary]) -> None:
    """Raise ConfigError unless all runs are finished and were measured alike."""
    for run in runs:
        if not run.results.get("table"):
            raise ConfigError(
                f"{run.folder} has no accuracy to compare ({run.state}): finish it with "
                "`fedssl run`, with labelled test images"
            )
    first = runs[0]
    for run in runs[1:]:
        for key in ("test_images", "labels"):
            if run.results.get(key) != first.results.get(key):
                raise ConfigError(
                    f"{run.folder} was measured on other {key.replace('_', ' ')} than "
                    f"{first.folder}: their accuracies cannot be compared"
                )
        _check_same_probes(first, run)


def _check_same_probes(first: RunSummary, other: RunSummary) -> None:
    """Raise ConfigError if two runs were measured with other settings."""
    ignored = {"every", "picture", "beside"}
    old = flatten(first.experiment.to_dict()["probe"])
    new = flatten(other.experiment.to_dict()["probe"])
    for key in sorted({*old, *new} - ignored):
        if old.get(key) != new.get(key):
            raise ConfigError(
                f"{first.folder} was measured with probe.{key} = {old.get(key)}, {other.folder} "
                f"with {new.get(key)}: run one again with --set probe.{key}={old.get(key)}; that "
                "measures it anew and trains nothing"
            )


def group_runs(runs: Sequence[RunSummary]) -> list[Group]:
    """Return the runs in groups that differ in their seeds only, in the order given."""
    settings = [training_values(run.experiment) for run in runs]
    varying = [key for key in _all_keys(settings) if _differs(key, settings) and key != "seed"]
    grouped: dict[str, tuple[dict[str, Any], list[RunSummary]]] = {}
    for run, values in zip(runs, settings, strict=True):
        own = {key: values.get(key) for key in varying}
        label = _label(own) or run.folder.name
        grouped.setdefault(label, (own, []))[1].append(run)
    return [Group(label, own, members) for label, (own, members) in grouped.items()]


def _all_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    keys: dict[str, None] = {}
    for values in settings:
        keys |= dict.fromkeys(values)
    return list(keys)


def _differs(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    return any(values.get(key) != settings[0].get(key) for values in settings[1:])


def _label(values: Mapping[str, Any]) -> str:
    """Return the differences as text; keys of a table whose name differs are left out."""
    tables = tuple(key.removesuffix("name") for key in values if key.endswith(".name"))
    words = []
    for key, value in values.items():
        if key.endswith(".name"):
            words.append(str(value))
        elif value is not None and not key.startswith(tables):
            words.append(f"{key.rpartition('.')[2]} {value}")
    return ", ".join(words)


def swept_key(groups: Sequence[Group]) -> str | None:
    """Return the one numeric setting in which the groups differ; None if there is none."""
    if len(groups) < 2 or len(groups[0].values) != 1:
        return None
    key = next(iter(groups[0].values))
    values = [group.values[key] for group in groups]
    numeric = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    return key if numeric else None


def paired_difference(first: Group, other: Group, probe: str) -> Interval | None:
    """Return how much better the other group is on the same test images, averaged over seeds.

    None if the outcomes of single images were not saved, as by earlier versions.
    """
    before = _mean_outcome(first, probe)
    after = _mean_outcome(other, probe)
    if before is None or after is None:
        return None
    return difference_interval(after, before)


def _mean_outcome(group: Group, probe: str) -> Tensor | None:
    """Return for each test image the share of seeds that are right; None if a run has no outcomes."""
    outcomes = []
    for run in group.runs:
        outcome = read_outcomes(run.folder).get((THIS_RUN, probe))
        if outcome is None:
            return None
        outcomes.append(outcome)
    return torch.stack(outcomes).mean(0)
