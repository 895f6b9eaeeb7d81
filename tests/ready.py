"""The recipes that can be run, without those that wait for what is not there yet."""

from __future__ import annotations

from fedssl.recipes import Recipe, recipes

# Methods and algorithms that recipes name and the package does not have yet. To be emptied as they come.
WAITING: set[str] = set()


def waits(recipe: Recipe) -> bool:
    return bool({recipe.values["method"]["name"], recipe.values["algorithm"]["name"]} & WAITING)


READY = [name for name, recipe in recipes().items() if not waits(recipe)]
