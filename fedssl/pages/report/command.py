"""Find the command that runs an experiment again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedssl.core.errors import FedsslError
from fedssl.core.user_modules import import_options, read_record
from fedssl.data import PythonImages
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.lookup import all_names, find_recipe
from fedssl.experiment.overrides import DEFAULT_NAMES
from fedssl.experiment.plain_values import differences, parse_assignment
from fedssl.runs.comparable import value_text
from fedssl.runs.resume_checks import EXPERIMENT, FLOWER

MAX_CHANGES = 6  # of a recipe; an experiment with more is run from its file
TABLES = ("method", "algorithm", "data")


class Command(NamedTuple):
    """A command, and what it needs."""

    text: str
    note: str


def command_again(experiment: Experiment, folder: Path, device: str | None) -> Command:
    """Return the command that runs the same experiment again, elsewhere too if that is possible."""
    options = import_options(read_record(folder))
    if device is not None:
        options += ["--device", device]
    if (folder / FLOWER).is_file():
        note = (
            "The run was trained by Flower. Start its app in the app's folder; a federation on one "
            "machine is started by `fedssl flower up` instead."
        )
        return Command("flwr run .", note)
    if isinstance(experiment.data, PythonImages):
        note = f"Images were passed from Python. Save the experiment below as {EXPERIMENT}."
        return Command(f'fedssl.run("{EXPERIMENT}", dataset=images)', note)
    words = None if options[:1] == ["--import"] else recipe_command(experiment)
    if words is None:
        words = ["fedssl", "run", EXPERIMENT]
        note = f"Save the experiment below as {EXPERIMENT} first."
    else:
        note = "A recipe of fedssl, with the changes of this run."
    return Command(shlex.join([*words, *options]), note)


def recipe_command(experiment: Experiment) -> list[str] | None:
    """Return the command with a recipe and the fewest changes; None if no recipe is near."""
    wanted = experiment.to_dict()
    best: list[str] | None = None
    for name in all_names():
        values = find_recipe(name)
        if any(_name(values, table) != wanted[table]["name"] for table in TABLES):
            continue
        words = _changes(values, wanted)
        if words is not None and (best is None or len(words) + 3 < len(best)):
            best = ["fedssl", "run", name, *words]
    return best


def _name(values: Mapping[str, Any], table: str) -> Any:
    value = values.get(table, DEFAULT_NAMES.get(table))
    return value.get("name") if isinstance(value, Mapping) else value


def _changes(values: dict[str, Any], wanted: Mapping[str, Any]) -> list[str] | None:
    """Return the options that turn a recipe into the wanted experiment; None if too many."""
    try:
        recipe = Experiment.from_dict(values)
        changed = differences(recipe.to_dict(), wanted)
        if len(changed) > MAX_CHANGES:
            return None
        words = []
        changes: dict[str, Any] = {}
        for key, (_, value) in changed.items():
            assignment = f"{key}={_text(value)}"
            words += ["--set", assignment]
            changes |= dict([parse_assignment(assignment)])
        if recipe.with_changes(changes).to_dict() != wanted:
            return None
    except FedsslError:
        return None
    return words


def _text(value: Any) -> str:
    return "" if value is None else value_text(value)
