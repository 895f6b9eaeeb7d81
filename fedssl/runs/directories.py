"""Choose the run directory: by what is trained, with a name that people recognise.

The same training is found again under any name, also in directories that an earlier version named
by a hash. Another training gets a directory named after the settings that differ.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedssl.core.console import shortened
from fedssl.core.errors import ConfigError
from fedssl.experiment.experiment import Experiment, load
from fedssl.experiment.init_file import SHA256
from fedssl.experiment.overrides import CHANGEABLE
from fedssl.experiment.plain_values import differences, flatten
from fedssl.runs.resume_checks import EXPERIMENT, started
from fedssl.runs.view_names import VIEWS, preset_of_views
from fedssl.training.trainer import resolve_precision

RUNS = Path("runs")
MAX_NAMED = 3  # differences in the name of a directory
MAX_LISTED = 5  # differences that are printed
MAX_VALUE = 20  # characters of a value in the name
MAX_NAME = 100  # characters
# These may change when a run is resumed, but another number of rounds is another training.
NON_TRAINING_KEYS = tuple(key for key in CHANGEABLE if key != "rounds")


def titled_experiment(
    experiment: str | Path | Experiment, changes: Mapping[str, Any]
) -> tuple[str, Experiment, Experiment]:
    """Return the title of a run, and its experiment before and after the changes.

    A file may be complete only with the changes, for example without the images that Python passes.
    It is then taken as it is after them.
    """
    if isinstance(experiment, Experiment):
        changed = experiment.with_changes(changes)
        changed.check()
        return _title_of(experiment), experiment, changed
    title = Path(experiment).name.removesuffix(".toml")  # not its stem: recipes' names have dots
    chosen = load(experiment, changes)
    original = chosen
    if changes:
        with contextlib.suppress(ConfigError):
            original = load(experiment)
    return title, original, chosen


def _title_of(experiment: Experiment) -> str:
    """Return a title for an experiment from Python: its algorithm, method and data set."""
    values = experiment.to_dict()
    names = [values[table]["name"] for table in ("algorithm", "method")]
    data = values["data"]["name"]
    return "-".join([*names, "images" if data == "given" else data])


def default_dir(
    title: str, experiment: Experiment, original: Experiment, device: torch.device
) -> Path:
    """Return the directory of the same training, or a new one named after the changes."""
    return run_directory(title, _resolved(experiment, device), _resolved(original, device))


def _resolved(experiment: Experiment, device: torch.device) -> Experiment:
    """Return the experiment as it is recorded: with the precision that is used on a device."""
    precision = resolve_precision(experiment.train.precision, device)
    return experiment.with_changes({"train.precision": precision})


def run_directory(title: str, wanted: Experiment, original: Experiment | None = None) -> Path:
    """Return the directory for an experiment: the one of the same training if there is one.

    `original` is the experiment before it was changed on the command line. A new directory is named
    after the differences from the run of the plain name or, without such a run, from `original`.
    """
    values = _named_values(wanted)
    for folder in _candidates(title):
        recorded = _recorded(folder)
        if recorded is not None and _named_values(recorded) == values:
            return folder
    name = title
    base = _recorded(RUNS / title) or original
    if base is not None:
        name += suffix(_named_values(base), values)
    return _free(name, values)


def directory_line(title: str, wanted: Experiment, folder: Path, device: torch.device) -> str:
    """Return the line that names a run directory and, if it is new, from which run it differs."""
    first = RUNS / title
    recorded = None
    if folder != first and not started(folder):
        recorded = _recorded(first)
    if recorded is None:
        return f"run directory: {folder}"
    values = _named_values(_resolved(wanted, device))
    changed = {
        key: value for key, (_, value) in differences(_named_values(recorded), values).items()
    }
    keys = [key.removesuffix(".name") for key in _name_views(changed, values)]
    return (
        f"new run directory: {folder}, which differs from {first} in "
        f"{', '.join(shortened(keys, MAX_LISTED))}; training starts from round 0"
    )


def training_values(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that decide what is trained, by dotted key."""
    flat = flatten(experiment.to_dict())
    return {key: value for key, value in flat.items() if not _not_trained(key)}


def _named_values(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that choose a directory.

    The hash of a file is recorded when a run starts. Another file at the same path does not choose
    another directory: `check_resumable` rejects it.
    """
    values = training_values(experiment)
    values.pop(SHA256, None)
    return values


def _not_trained(key: str) -> bool:
    return any(key == ignored or key.startswith(f"{ignored}.") for ignored in NON_TRAINING_KEYS)


def suffix(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the differences of two trainings for a name, "-byol-rounds16"; "" if none."""
    changed = {key: value for key, (_, value) in differences(old, new).items()}
    changed = _name_views(changed, new)
    tables = {key.removesuffix("name") for key in changed if key.endswith(".name")}
    words = [_word(key, changed[key]) for key in changed if key.endswith(".name")]
    for key, value in changed.items():
        # Another method or algorithm brings other settings: its name says enough.
        if not key.startswith(tuple(tables)):
            words.append(_word(key, value))
    named = words[:MAX_NAMED]
    if len(words) > MAX_NAMED:
        named.append(f"and-{len(words) - MAX_NAMED}-more")
    return "".join(f"-{word}" for word in named)


def _name_views(changed: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Replace changes of the views by the name of the preset that all views now have, if any."""
    others = {key: value for key, value in changed.items() if not key.startswith(VIEWS)}
    if len(others) < len(changed):
        preset = preset_of_views(new)
        if preset is not None:
            return {f"{VIEWS}name": preset, **others}
    return dict(changed)


def _word(key: str, value: Any) -> str:
    """Return one difference as a part of a file name."""
    leaf = key.rpartition(".")[2]
    if leaf == "name":
        return _safe(value)
    if value is None:
        return f"no-{leaf}"
    if isinstance(value, bool):
        return leaf if value else f"no-{leaf}"
    if isinstance(value, list):
        return leaf + "-".join(map(_safe, value))
    if isinstance(value, str):
        return f"{leaf}-{_safe(value)}"
    return f"{leaf}{_safe(value)}"


def _safe(value: Any) -> str:
    """Return a value in characters that are safe in file names."""
    return re.sub(r"[^\w.]+", "-", str(value)).strip("-.")[:MAX_VALUE]


def _candidates(title: str) -> list[Path]:
    """Return existing directories whose names begin with the title, the plain one first."""
    named = [RUNS / title]
    if RUNS.is_dir():
        named += sorted(path for path in RUNS.iterdir() if path.name.startswith(f"{title}-"))
    return [path for path in named if (path / EXPERIMENT).is_file()]


def _recorded(folder: Path) -> Experiment | None:
    """Return the experiment that was started in a directory; None if it cannot be read."""
    if not started(folder):
        return None
    try:
        return Experiment.from_file(folder / EXPERIMENT)
    except ConfigError:  # damaged, or of a plugin that is not installed
        return None


def _free(name: str, values: Mapping[str, Any]) -> Path:
    """Return a directory in which no other training was started."""
    folder = RUNS / name
    number = 1
    while started(folder):
        recorded = _recorded(folder)
        difference = "" if recorded is None else suffix(_named_values(recorded), values)
        number += 1
        if not difference or len(name) + len(difference) > MAX_NAME:
            difference = f"-{number}"
            folder = RUNS / f"{name}{difference}"
            continue
        name += difference
        folder = RUNS / name
    return folder
