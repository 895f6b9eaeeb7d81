"""Suggest an existing path for a misspelled one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

from fedssl.core.console import names_are_shown
from fedssl.core.suggestions import CUTOFF

MAX_SUGGESTED = 3
MAX_ENTRIES = 10_000  # of a folder that are compared

Accept = Callable[[Path], bool]


def suggest_path(
    path: str | Path, accept: Accept = Path.exists, roots: Iterable[Path] = (Path(),)
) -> str:
    """Return `, did you mean "x"?` if a similar path exists in one of the roots, else "".

    Only paths for which `accept` is true are suggested, and none in logs of fedssl: names of
    folders and files may be private.
    """
    if not names_are_shown():
        return ""
    similar: dict[str, None] = {}  # a set in the order of insertion
    for root in roots:
        for found in similar_paths(Path(path).expanduser(), root, accept):
            similar[f'"{found}"'] = None
    if not similar:
        return ""
    return f", did you mean {' or '.join(list(similar)[:MAX_SUGGESTED])}?"


def similar_paths(path: Path, root: Path, accept: Accept) -> list[Path]:
    """Return the accepted paths in `root` whose names are similar to those in `path`.

    A misspelled folder on the way is replaced by the folder whose name is closest.
    """
    if not path.name:
        return []
    parent = Path()
    for name in path.parts[:-1]:
        if not (root / parent / name).is_dir():
            folders = _similar_names(name, root / parent, Path.is_dir)
            if not folders:
                return []
            name = folders[0]
        parent /= name
    return [parent / name for name in _similar_names(path.name, root / parent, accept)]


def _similar_names(name: str, folder: Path, accept: Accept) -> list[str]:
    """Return the names in a folder that are similar to this one, the closest first."""
    try:
        with os.scandir(folder) as entries:
            present = [entry.name for entry in islice(entries, MAX_ENTRIES)]
    except OSError:
        return []
    ranked = []
    for other in present:
        if other.isprintable() and not other.startswith("."):
            ranked.append((-_similarity(name, other), other))
    similar = []
    for negative, other in sorted(ranked):
        if -negative >= CUTOFF and accept(folder / other):
            similar.append(other)
    return similar[:MAX_SUGGESTED]


def _similarity(name: str, other: str) -> float:
    """Return the similarity of two file names, from 0 to 1, regardless of case.

    A suffix that both have, or only one, does not count: all experiments end in ".toml".
    """
    first, suffix = os.path.splitext(name.lower())
    second, other_suffix = os.path.splitext(other.lower())
    if suffix and other_suffix and suffix != other_suffix:
        first += suffix
        second += other_suffix
    return difflib.SequenceMatcher(None, first, second).ratio()
