"""Check that finished runs can be compared: that their accuracies were measured alike."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fedssl.core.errors import ConfigError
from fedssl.experiment.plain_values import differences, flatten
from fedssl.runs.resume_checks import EXPERIMENT
from fedssl.runs.summary import RunSummary

# Settings that do not change the accuracy of a finished run.
NOT_MEASURED = {"probe.every", "probe.picture", "probe.baselines"}


def check_comparable(runs: Sequence[RunSummary]) -> None:
    """Raise ConfigError unless all runs are finished and were measured alike."""
    for run in runs:
        _check_measured(run)
    first = runs[0]
    for run in runs[1:]:
        for key in ("test_images", "labels"):
            _check_same_hash(first, run, key, key.replace("_", " "))
        _check_same_probes(first, run)
        for key in ("on_images", "on_labels"):
            _check_same_hash(first, run, key, "images or labels of probe.on")


def _check_same_hash(first: RunSummary, run: RunSummary, key: str, noun: str) -> None:
    """Raise ConfigError if two runs were measured on different images or labels."""
    if run.results.get(key) != first.results.get(key):
        raise ConfigError(
            f"{run.folder} was measured on other {noun} than {first.folder}: leave out one of "
            "them, or measure both on the same images"
        )


def _check_measured(run: RunSummary) -> None:
    """Raise ConfigError if a run has no accuracy."""
    if not run.results:
        raise ConfigError(
            f"{run.folder} has no accuracy yet ({run.state}): finish it with `fedssl run`, or "
            "leave it out"
        )
    if not run.results.get("table"):
        raise ConfigError(
            f"{run.folder} has no accuracy: it has no labelled test images. Measure it with "
            "data.test, or leave it out"
        )


def _check_same_probes(first: RunSummary, other: RunSummary) -> None:
    """Raise ConfigError if two runs were measured with differing settings."""
    old = _probe_settings(first)
    new = _probe_settings(other)
    changed = sorted(differences(old, new))
    if not changed:
        return
    named = []
    for key in changed:
        values = (
            f"{value_text(old.get(key))} in the first, {value_text(new.get(key))} in the second"
        )
        named.append(f"{key} ({values})")
    raise ConfigError(
        f"{first.folder} and {other.folder} were measured with differing settings: "
        f"{', '.join(named)}. `{_measure_commands(first, other, changed)}` measures again without "
        "training"
    )


def unusual_probes(runs: Sequence[RunSummary]) -> list[str]:
    """Return for each run how its probe settings differ from the most common ones, or "".

    The most common are those of the runs that were measured on the same test images and labels;
    runs measured on others cannot be compared anyway. Of equally common ones, the first are used.
    """
    texts = []
    for run in runs:
        text = ""
        if run.results.get("table"):
            alike = [other for other in runs if _measured_on(other) == _measured_on(run)]
            text = _probe_difference(_most_common_probes(alike), _probe_settings(run))
        texts.append(text)
    return texts


def _measured_on(run: RunSummary) -> tuple[bool, Any, Any]:
    """Return whether a run has accuracies, and the hashes of its test images and labels."""
    measured = bool(run.results.get("table"))
    return measured, run.results.get("test_images"), run.results.get("labels")


def _most_common_probes(runs: Sequence[RunSummary]) -> dict[str, Any]:
    """Return the settings with which most runs were measured; the first of equally common ones."""
    settings = [_probe_settings(run) for run in runs]
    return max(settings, key=settings.count)


def _probe_difference(common: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Return the settings of a run that are not the common ones: "probe.k = 5 (others: 20)"."""
    words = []
    for key, (usual, value) in sorted(differences(common, own).items()):
        setting = f"{key} not set" if value is None else f"{key} = {value_text(value)}"
        words.append(f"{setting} (others: {value_text(usual)})")
    return ", ".join(words)


def _probe_settings(run: RunSummary) -> dict[str, Any]:
    """Return the settings that decide the accuracy of a run, by dotted key."""
    flat = flatten({"probe": run.experiment.to_dict()["probe"]})
    return {key: value for key, value in flat.items() if key not in NOT_MEASURED}


def _measure_commands(first: RunSummary, other: RunSummary, keys: Sequence[str]) -> str:
    """Return the command that measures the second run with the settings of the first.

    A command can set a value but not remove one: if the first run has no value of a key, it is
    measured with the settings of the second. If each has a key without a value, both are measured.
    """
    old = _probe_settings(first)
    new = _probe_settings(other)
    if old.keys() >= set(keys):
        return _measure_command(other, old, keys)
    if new.keys() >= set(keys):
        return _measure_command(first, new, keys)
    from_old = [key for key in keys if key in old]
    from_new = [key for key in keys if key not in old]
    commands = (_measure_command(other, old, from_old), _measure_command(first, new, from_new))
    return " && ".join(commands)


def _measure_command(run: RunSummary, values: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the command that measures a run with other values of some settings."""
    words = ["fedssl", "run", str(run.folder / EXPERIMENT), "--dir", str(run.folder)]
    for key in keys:
        words += ["--set", f"{key}={value_text(values[key])}"]
    return shlex.join(words)


def value_text(value: Any) -> str:
    """Return a value as in an assignment: TOML, without quotes."""
    if value is None:
        return "not set"
    if isinstance(value, str):
        return value
    return json.dumps(value)
