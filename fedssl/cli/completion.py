"""Complete the arguments of commands in a shell.

Where there is no match, a function returns an empty list, and the shell completes names of files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

EXPERIMENT = "experiment.toml"  # in every run directory


def complete_recipe(incomplete: str) -> list[str]:
    """Return the recipes whose names begin with the text.

    Variants are listed once the name of a recipe is complete.
    """
    from fedssl.experiment.lookup import all_names
    from fedssl.experiment.recipes import recipes

    names = _matching(recipes(), incomplete)
    if names in ([], [incomplete]):
        return _matching(all_names(), incomplete)
    return names


def complete_source(incomplete: str) -> list[str]:
    """Return the recipes and the TOML files whose names begin with the text."""
    return complete_recipe(incomplete) + _paths(incomplete, "*.toml")


def complete_run(incomplete: str) -> list[str]:
    """Return the run directories whose paths begin with the text, up to two folders deep."""
    experiments = _paths(incomplete, f"*/{EXPERIMENT}") + _paths(incomplete, f"*/*/{EXPERIMENT}")
    return list(map(os.path.dirname, experiments))


def _paths(incomplete: str, pattern: str) -> list[str]:
    """Return the paths that match a pattern, in the folder that an incomplete path is in."""
    folder = incomplete[: incomplete.rfind("/") + 1]
    paths = []
    for path in sorted(Path(folder).glob(pattern)):
        paths.append(folder + path.relative_to(folder).as_posix())
    return _matching(paths, incomplete)


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    matching = []
    for name in names:
        if name.startswith(incomplete):
            matching.append(name)
    return matching
