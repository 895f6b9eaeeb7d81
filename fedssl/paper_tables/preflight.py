"""Find trainings that could not be measured afterwards, before hours are spent on them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedssl.core.console import Notify
from fedssl.core.errors import FedsslError
from fedssl.evaluation.missing_labels import missing_labels
from fedssl.experiment.client_data import read_data
from fedssl.experiment.experiment import Experiment
from fedssl.paper_tables.plan import Measure, Training
from fedssl.probes import PROBES

ADVICE = (
    "; without labels, train with `fedssl run` and compare loss and divergence of runs with "
    "`fedssl analyse divergence`"
)


def unmeasurable(
    trainings: Mapping[Training, Iterable[Measure]], data_dir: Path, notify: Notify
) -> dict[tuple[Training, str], str]:
    """Return what the images of a training lack for a measurement, by training and measurement.

    Reads the images of all trainings, each data set once.
    """
    by_data: dict[str, dict[str, str]] = {}
    problems: dict[tuple[Training, str], str] = {}
    for training, measures in trainings.items():
        data = json.dumps(training.experiment.to_dict()["data"], sort_keys=True)
        if data not in by_data:
            by_data[data] = _probe_problems(training.experiment, data_dir, notify)
        for measure in measures:
            if measure.probe in by_data[data]:
                problems[training, measure.file] = by_data[data][measure.probe]
    return problems


def _probe_problems(experiment: Experiment, data_dir: Path, notify: Notify) -> dict[str, str]:
    """Return a sentence for every probe that cannot measure with these images."""
    try:
        data = read_data(experiment, data_dir, None, notify)
    except (FedsslError, OSError):  # the training will fail with the same error
        return {}
    problems = {}
    for probe in PROBES:
        problem = missing_labels(data, probe, trained_on=False)
        if problem is not None:
            problems[probe] = problem + ADVICE
    return problems
