"""Select recipes and print them: an overview, or a list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedssl.core.errors import ConfigError
from fedssl.core.rich_console import wide_console
from fedssl.experiment.lookup import all_names, is_file
from fedssl.experiment.recipes import Recipe, families, matching, recipes
from fedssl.experiment.recipes.grid import notes

VARIANT_LINES = (
    ("NAME-short", "one local epoch a round"),
    ("NAME-mini", "a small network on images that come with fedssl: minutes on a CPU"),
)
COMMAND_LINES = (
    ("fedssl recipes FedEMA", "lists the recipes of a paper"),
    ('fedssl recipes "FedEMA, Table 3"', "lists those of a table"),
    ("fedssl recipes mocov2", "lists those with this text in their name"),
    ("fedssl recipes --all", "lists all of them"),
    ("fedssl recipes demo", "prints a recipe as TOML, with all settings"),
    ("fedssl run demo", "trains it"),
)


def is_one(name: str) -> bool:
    """True if this is the name or file of an experiment, not a pattern."""
    return name in all_names() or is_file(name)


def chosen(pattern: str | None) -> dict[str, Recipe]:
    """Return the recipes that a pattern selects; all without a pattern.

    A pattern with *, # or {} must match the whole name. Any other text is a part of the name, a
    table ("FedEMA, Table 6" or "Table 6") or a paper.
    """
    known = recipes()
    if pattern is None:
        return dict(known)
    if set(pattern) & set("*#{"):
        selected = {name: known[name] for name in matching(known, pattern)}
    else:
        text = pattern.lower()
        selected = {}
        for name, recipe in known.items():
            if text in name or _is_published_in(recipe, text):
                selected[name] = recipe
    if not selected:
        raise ConfigError(f'no recipe matches "{pattern}"; fedssl recipes --all lists all of them')
    return selected


def _is_published_in(recipe: Recipe, text: str) -> bool:
    """True if the text is a paper or table that has the recipe; "table 1" is not table 10."""
    for place in recipe.places:
        if text == place.lower() or text in place.lower().split(", "):
            return True
    return False


def print_overview() -> None:
    """Print the number of recipes of each paper, the variants, and how to list or print more."""
    console = wide_console()
    known = recipes()
    counts: Counter[str] = Counter()
    for recipe in known.values():
        counts[recipe.family] += 1
    sources = []
    for family, cited in families().items():
        if cited:
            paper, _, cite = cited.partition(": ")
            sources.append((paper, str(counts[family]), cite))
        else:
            sources.append((family, "1", ". ".join(notes(known[family].layers))))
    sections = {
        f"{len(known)} recipes: named training settings, ready to run": sources,
        "Variants of every recipe": VARIANT_LINES,
        "Commands": COMMAND_LINES,
    }
    for title, rows in sections.items():
        console.print(title, highlight=False)
        console.print(_columns(rows))
        console.print()


def _columns(rows: Iterable[Sequence[str]]) -> Padding:
    """Return rows in aligned columns, without lines around them; numbers are aligned right."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(Text, row))
    for column in table.columns[:-1]:
        column.no_wrap = True
    for column in table.columns[1:-1]:
        column.justify = "right"
    return Padding.indent(table, 2)


def print_recipes(selected: Mapping[str, Recipe]) -> None:
    """Print a table for each paper; without a terminal, one line per recipe."""
    console = wide_console()
    for family, paper in families().items():
        members = [recipe for recipe in selected.values() if recipe.family == family]
        if members:
            console.print(_table(members, paper))
    console.print(
        "NAME-short trains one local epoch a round; NAME-mini is small and needs no download.\n"
        "fedssl recipes NAME prints a recipe, fedssl recipes PATTERN lists some, "
        "fedssl run NAME runs one.",
        markup=False,
        highlight=False,
    )


def _table(members: Sequence[Recipe], paper: str) -> Table:
    title = Text(paper) if paper else None
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True, overflow="fold")
    table.add_column("description")
    table.add_column("source")
    for recipe in members:
        table.add_row(Text(recipe.name), Text(recipe.about), Text(recipe.source))
    return table
