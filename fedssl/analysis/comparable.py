"""Check that the kNN accuracies of several runs were measured alike, on the same images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedssl.errors import ConfigError
from fedssl.probes import PROBES
from fedssl.run import Run

# Keys of [data] that do not change which images and labels a probe uses.
NOT_IMAGES = {"cache", "mean", "std", "leave_out", "bad_share"}
HASHES = ("test_images", "labels")  # in results.json of a finished run


def data_settings(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that choose images, by dotted key, from an experiment's plain values."""
    data = experiment["data"]
    return {f"data.{key}": value for key, value in data.items() if key not in NOT_IMAGES}


def image_hashes(run: Run) -> tuple[str, ...] | None:
    """Return hashes of the test images and of all labels; None if the run has not recorded them."""
    results = run.results
    found = [results[key] for key in HASHES if results.get(key) is not None]
    return tuple(found) if len(found) == len(HASHES) else None


def knn_settings(run: Run) -> list[dict[str, Any]]:
    """Return every combination of settings that the run's kNN accuracies were measured with.

    A run may resume with other settings, so its rounds log has those of each measurement. In logs of
    earlier versions they are missing; then the experiment's settings apply.
    """
    chosen = run.experiment.to_dict()["probe"]
    usual = {key: chosen[key] for key in PROBES["knn"].uses}
    found = [line.get("knn_settings", usual) for line in run.rounds if line.get("knn") is not None]
    distinct: list[dict[str, Any]] = []
    for settings in found or [usual]:
        if settings not in distinct:
            distinct.append(settings)
    return distinct


def check_comparable(runs: Mapping[str, Run]) -> None:
    """Raise ConfigError, naming the differing settings, unless kNN was measured alike in all runs."""
    problems = _differing_settings(runs) + _differing_images(runs)
    if problems:
        raise ConfigError(
            f"these runs' kNN accuracies cannot be compared: {'; '.join(problems)}. "
            "Compare runs measured alike, or measure them again with the same settings"
        )


def _differing_settings(runs: Mapping[str, Run]) -> list[str]:
    values: dict[str, dict[str, list[str]]] = {}  # setting -> value -> names of runs
    for name, run in runs.items():
        for settings in knn_settings(run):
            for key, value in settings.items():
                names = values.setdefault(f"probe.{key}", {}).setdefault(str(value), [])
                if name not in names:
                    names.append(name)
    return [_difference(key, found) for key, found in values.items() if len(found) > 1]


def _differing_images(runs: Mapping[str, Run]) -> list[str]:
    """Compare hashes where every run has them, the settings under [data] otherwise."""
    hashes = {name: image_hashes(run) for name, run in runs.items()}
    if None not in hashes.values():
        first = next(iter(hashes))
        others = [name for name, found in hashes.items() if found != hashes[first]]
        return [f"{', '.join(others)}: other test images or labels than {first}"] if others else []
    settings = {name: data_settings(run.experiment.to_dict()) for name, run in runs.items()}
    problems = []
    for key in dict.fromkeys(key for each in settings.values() for key in each):
        values: dict[str, list[str]] = {}
        for name, each in settings.items():
            values.setdefault(str(each.get(key, "not set")), []).append(name)
        if len(values) > 1:
            problems.append(_difference(key, values))
    return problems


def _difference(key: str, values: Mapping[str, list[str]]) -> str:
    """Such as "probe.k is 5 in a, 3 in b"."""
    return f"{key} is " + ", ".join(f"{value} in {' and '.join(names)}" for value, names in values.items())
