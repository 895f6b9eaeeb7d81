"""Make the paths in an experiment absolute, for processes with another current directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedssl.data import SOURCES
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.init_file import absolute_init
from fedssl.experiment.plain_values import flatten

# Paths in the directory of data sets, or else in the current directory.
KEYS = ("data.path", "data.test", "probe.on", "probe.on.path", "probe.on.test")


def with_absolute_paths(experiment: Experiment, data_dir: Path) -> Experiment:
    """Return the experiment with absolute paths of files outside of the directory of data sets.

    Paths inside of it stay as they are: every process has its own such directory.
    """
    changes: dict[str, str] = absolute_init(experiment.method)
    values: Mapping[str, Any] = flatten(experiment.to_dict())
    for key in KEYS:
        path = values.get(key)
        if not isinstance(path, str) or path in SOURCES.names():
            continue
        if not (data_dir / path).exists() and Path(path).expanduser().exists():
            changes[key] = _absolute(path)
    if "partition.path" in values:  # only in the current directory
        changes["partition.path"] = _absolute(values["partition.path"])
    return experiment.with_changes(changes)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())
