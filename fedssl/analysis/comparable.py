"""Check that the kNN accuracies of several runs were measured alike, on the same images."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from fedssl.core.errors import ConfigError
from fedssl.probes import PROBES
from fedssl.runs.run import Run

# Keys of [data] that do not change which images and labels a probe uses.
NOT_IMAGES = {"cache", "mean", "std", "leave_out", "bad_share"}
HASHES = ("test_images", "labels")  # in results.json of a finished run

RunsByValue = dict[str, list[str]]  # value -> names of runs


def data_settings(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that choose images, by dotted key, from an experiment's plain values."""
    settings = {}
    for key, value in experiment["data"].items():
        if key not in NOT_IMAGES:
            settings[f"data.{key}"] = value
    return settings


def image_hashes(run: Run) -> tuple[str, ...] | None:
    """Return hashes of the test images and of all labels; None if the run has not recorded them."""
    hashes: tuple[Any, ...] = tuple(map(run.results.get, HASHES))
    if None in hashes:
        return None
    return hashes


def knn_settings(run: Run) -> list[dict[str, Any]]:
    """Return every combination of settings that the run's kNN accuracies were measured with.

    A run may resume with other settings, so its rounds log has those of each measurement. In logs
    of earlier versions they are missing; then the experiment's settings apply.
    """
    probe = run.experiment.to_dict()["probe"]
    default = {key: probe.get(key) for key in PROBES["knn"].uses}
    distinct: list[dict[str, Any]] = []
    for line in run.rounds:
        if line.get("knn") is None:
            continue
        settings = line.get("knn_settings", default)
        if settings not in distinct:
            distinct.append(settings)
    return distinct or [default]


def check_same_knn(runs: Mapping[str, Run]) -> None:
    """Raise ConfigError, with the differing settings, unless all runs measured kNN alike."""
    problems = _differing_settings(runs) + _differing_images(runs)
    if problems:
        raise ConfigError(
            f"these kNN accuracies cannot be compared: {'; '.join(problems)}. "
            "Compare runs whose rounds were all measured with the same settings"
        )


def _differing_settings(runs: Mapping[str, Run]) -> list[str]:
    values: dict[str, RunsByValue] = {}
    for name, run in runs.items():
        for settings in knn_settings(run):
            for key, value in settings.items():
                names = values.setdefault(f"probe.{key}", {}).setdefault(str(value), [])
                if name not in names:
                    names.append(name)
    return _differences(values)


def _differing_images(runs: Mapping[str, Run]) -> list[str]:
    """Compare hashes where every run has them, the settings under [data] otherwise."""
    hashes = {name: image_hashes(run) for name, run in runs.items()}
    if None in hashes.values():
        return _differing_data_settings(runs)
    first = next(iter(hashes))
    others = [name for name in hashes if hashes[name] != hashes[first]]
    if not others:
        return []
    return [f"{', '.join(others)}: other test images or labels than {first}"]


def _differing_data_settings(runs: Mapping[str, Run]) -> list[str]:
    settings = {name: data_settings(run.experiment.to_dict()) for name, run in runs.items()}
    values: dict[str, RunsByValue] = {}
    for key in dict.fromkeys(chain.from_iterable(settings.values())):
        by_value = values.setdefault(key, {})
        for name in runs:
            value = str(settings[name].get(key, "not set"))
            by_value.setdefault(value, []).append(name)
    return _differences(values)


def _differences(values: Mapping[str, RunsByValue]) -> list[str]:
    """Return a phrase such as "probe.k is 5 in a, 3 in b" for each setting with several values."""
    phrases = []
    for key, by_value in values.items():
        if len(by_value) > 1:
            parts = []
            for value, names in by_value.items():
                parts.append(f"{value} in {' and '.join(names)}")
            phrases.append(f"{key} is {', '.join(parts)}")
    return phrases
