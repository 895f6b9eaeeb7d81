"""The list of recipes, for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedssl.errors import ConfigError
from fedssl.recipes import VARIANTS, Recipe, families, matching, recipes

WIDE = 10_000  # columns off a terminal: a line for each recipe, to be searched


def is_one(name: str) -> bool:
    """Whether this is an experiment's name or file, not a pattern."""
    known, (first, _, variant) = recipes(), name.rpartition("-")
    return name in known or (variant in VARIANTS and first in known) or name.endswith(".toml") or Path(name).is_file()


def chosen(pattern: str | None) -> dict[str, Recipe]:
    """All recipes, or those with this in their name, or in this table ("FedEMA, Table 6", "Table 6") or of this paper.
    With *, # or {} in it, those whose name fits."""
    known = recipes()
    if pattern is None:
        return dict(known)
    if set(pattern) & set("*#{"):
        found = {name: known[name] for name in matching(known, pattern)}
    else:
        word = pattern.lower()
        found = {name: recipe for name, recipe in known.items() if word in name or _published(recipe, word)}
    if not found:
        raise ConfigError(f'no recipe is like "{pattern}"; fedssl recipes lists them all')
    return found


def _published(recipe: Recipe, place: str) -> bool:
    """Whether it is in a table, or in anything of a paper; "table 1" is not table 10."""
    places = [each.lower() for each in recipe.places]
    return any(place == each or place in each.split(", ") for each in places)


def print_recipes(found: Mapping[str, Recipe]) -> None:
    console = Console()
    console = console if console.is_terminal else Console(width=WIDE)
    for family, paper in families().items():
        if own := [recipe for recipe in found.values() if recipe.family == family]:
            console.print(_table(own, paper))
    console.print(
        "NAME-short: one local epoch a round. NAME-mini: small, on images that come with the package.\n"
        "fedssl recipes NAME prints one, fedssl recipes PATTERN lists some, fedssl run NAME runs it.",
        markup=False,
        highlight=False,
    )


def _table(found: Sequence[Recipe], paper: str) -> Table:
    table = Table(title=Text(paper) if paper else None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True, overflow="fold")
    table.add_column("what")
    table.add_column("from")
    for recipe in found:
        table.add_row(Text(recipe.name), Text(recipe.about), Text(recipe.source))
    return table
