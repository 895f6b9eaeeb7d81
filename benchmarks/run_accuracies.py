"""The final accuracies of runs, and which of them were measured with equal settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedssl.core.errors import RunError
from fedssl.core.files import integrity
from fedssl.probes import PROBES
from fedssl.runs.run import Run

# The settings under [probe] that each accuracy depends on; runs are compared if these are equal.
ACCURACIES = {probe: PROBES[probe].uses for probe in ("linear", "knn")}

ProbeValues = tuple[Any, ...]  # the values of an accuracy's settings, in their order


def final_accuracies(run: Run) -> dict[str, dict[ProbeValues, float]]:
    """Return a run's final accuracies by probe and by the values of the probe's settings.

    They are those of its results, and of linear probes that a table measured on the same run.
    """
    probe = run.experiment.to_dict()["probe"]
    table = run.results.get("table", {}).get("this run", {})
    accuracies: dict[str, dict[ProbeValues, float]] = {}
    for key in ACCURACIES:
        accuracies[key] = {}
        if key in table:
            accuracies[key][_probe_values(key, probe)] = table[key]["mean"]
    for file in sorted(run.dir.glob("measures/linear-*.json")):
        try:
            cell = integrity.read_json(file.parent, file.name) or {}
        except ValueError:
            raise RunError(
                f"{file} is damaged; remove it and measure it again with fedssl reproduce"
            ) from None
        if cell.get("experiment") == run.experiment.hash() and cell.get("on") is None:
            values = _probe_values("linear", probe | cell["settings"])
            accuracies["linear"].setdefault(values, cell["value"])
    return accuracies


def _probe_values(accuracy: str, probe: Mapping[str, Any]) -> ProbeValues:
    return tuple(probe.get(setting) for setting in ACCURACIES[accuracy])


def comparable_accuracies(
    runs: Sequence[Mapping[str, Mapping[ProbeValues, float]]],
) -> tuple[list[dict[str, float]], dict[str, ProbeValues]]:
    """Return each run's accuracies with the most common settings, and these settings."""
    common: dict[str, ProbeValues] = {}
    for key in ACCURACIES:
        counts = Counter(values for run in runs for values in run[key])
        if counts:
            common[key] = counts.most_common(1)[0][0]
    return [_select(run, common) for run in runs], common


def _select(
    run: Mapping[str, Mapping[ProbeValues, float]], common: Mapping[str, ProbeValues]
) -> dict[str, float]:
    return {key: run[key][values] for key, values in common.items() if values in run[key]}
