"""Whether what is to be trained can be measured afterwards: said before hours are spent on it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedssl.assemble import read_data
from fedssl.data.progress import Say
from fedssl.errors import FedsslError
from fedssl.experiment import Experiment
from fedssl.lacking import lacking
from fedssl.probes import PROBES
from fedssl.reproduce.plan import Measure, Training

WITHOUT = "; without labels, fedssl run trains and fedssl analyse divergence compares what training says of itself"


def unmeasurable(
    todo: Mapping[Training, Iterable[Measure]], data_dir: Path, say: Say
) -> dict[tuple[Training, str], str]:
    """What the images of a training lack for a measurement, by training and measurement. The images of all trainings
    are read for it, each data set once."""
    known: dict[str, dict[str, str]] = {}
    found: dict[tuple[Training, str], str] = {}
    for training, measures in todo.items():
        data = json.dumps(training.experiment.to_dict()["data"], sort_keys=True)
        if data not in known:
            known[data] = _lacking(training.experiment, data_dir, say)
        found |= {(training, each.file): known[data][each.probe] for each in measures if each.probe in known[data]}
    return found


def _lacking(experiment: Experiment, data_dir: Path, say: Say) -> dict[str, str]:
    """A sentence for every probe that these images cannot be measured with."""
    try:
        data = read_data(experiment, data_dir, None, say)
    except (FedsslError, OSError):  # which the training will say of itself, and not train
        return {}
    problems = {probe: lacking(data, probe, trained_on=False) for probe in PROBES}
    return {probe: problem + WITHOUT for probe, problem in problems.items() if problem is not None}
