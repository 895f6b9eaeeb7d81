"""`fedssl recipes`: print an overview, a list of recipes, or one recipe."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedssl.cli.completion import complete_recipe
from fedssl.cli.options import AsJson


def recipes(
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME_OR_PATTERN",
            help='Name of a recipe to print, or pattern to list: tau, "Table 6", "*-iid".',
            autocompletion=complete_recipe,
        ),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="List all recipes.")] = False,
    toml: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Print all settings of this recipe, including defaults.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List ready-made experiments, the demo and those of five papers, or print one as TOML."""
    from fedssl.cli.recipes import is_one, print_overview

    if toml:
        _print_one(toml, as_json)
    elif pattern and is_one(pattern):
        _print_one(pattern, as_json)
    elif pattern or all or as_json:
        _list(pattern, as_json)
    else:
        print_overview()


def _print_one(name: str, as_json: bool) -> None:
    from fedssl.experiment.lookup import check_source

    check_source(name)

    from fedssl.experiment.experiment import load

    experiment = load(name)
    if as_json:
        print(json.dumps(experiment.to_dict()))
    else:
        print(experiment.to_toml().rstrip("\n"))


def _list(pattern: str | None, as_json: bool) -> None:
    from fedssl.cli.recipes import chosen, print_recipes

    recipes = chosen(pattern)
    if as_json:
        values = {}
        for name, recipe in recipes.items():
            values[name] = {"about": recipe.about, "source": recipe.source}
        print(json.dumps(values))
    else:
        print_recipes(recipes)
