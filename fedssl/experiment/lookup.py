"""Find an experiment by the name of a recipe or by its file."""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path
from typing import Any

from fedssl.core.errors import ConfigError
from fedssl.core.missing_paths import no_file
from fedssl.core.similar_paths import suggest_path
from fedssl.core.suggestions import suggest
from fedssl.experiment.plain_values import parse_toml, read_text
from fedssl.experiment.recipes import VARIANTS, recipes


def is_file(name_or_file: str | Path) -> bool:
    """True if the argument of a command is meant as a file, not as the name of a recipe."""
    path = Path(name_or_file)
    return path.suffix == ".toml" or path.is_file()


def check_source(name_or_file: str | Path) -> None:
    """Raise ConfigError for an unknown recipe, a missing file or broken TOML.

    Fast, because it does not import torch.
    """
    if is_file(name_or_file):
        read_values(Path(name_or_file))
    else:
        split_name(str(name_or_file))


def load_values(name_or_file: str | Path) -> dict[str, Any]:
    """Return the plain values of a file, a recipe or a variant of one, without defaults."""
    if is_file(name_or_file):
        return read_values(Path(name_or_file))
    return find_recipe(str(name_or_file))


def read_values(path: Path) -> dict[str, Any]:
    """Return the plain values of a TOML file."""
    if not path.is_file():
        raise ConfigError(no_file(path, _is_experiment))
    return parse_toml(read_text(path), str(path))


def _is_experiment(path: Path) -> bool:
    return path.suffix == ".toml" and path.is_file()


def find_recipe(name: str) -> dict[str, Any]:
    """Return the plain values of a recipe, or of a variant of one."""
    recipe, variant = split_name(name)
    values = recipes()[recipe].values
    if variant is None:
        return copy.deepcopy(values)
    from fedssl.experiment.variants import MAKERS  # imports torch

    return MAKERS[variant](values)


def split_name(name: str) -> tuple[str, str | None]:
    """Return the recipe and the variant that a name refers to; raise ConfigError if unknown."""
    known = recipes()
    recipe, _, variant = name.rpartition("-")
    if name in known:
        return name, None
    if variant in VARIANTS and recipe in known:
        return recipe, variant
    similar_file = suggest_path(name, _is_experiment)
    if name and Path(name).is_dir() and not similar_file:
        raise ConfigError(_explain_folder(Path(name)))
    hint = suggest(name, all_names()) or similar_file
    if not hint:
        hint = "; fedssl recipes --all lists the recipes"
    raise ConfigError(f'there is no recipe or file "{name}"{hint}')


def _explain_folder(folder: Path) -> str:
    """Return the message for a folder that was given instead of an experiment."""
    experiment = folder / "experiment.toml"
    if experiment.is_file():
        return (
            f"{folder} is a run directory, not an experiment: "
            f"fedssl run {experiment} --dir {folder} resumes the run"
        )
    return (
        f"{folder} is a folder, not an experiment: "
        f"fedssl new {folder} writes an experiment for the images in it"
    )


def all_names() -> list[str]:
    """Return the names of all recipes and, after them, of their variants."""
    known = recipes()
    names = list(known)
    for name, variant in product(known, VARIANTS):
        names.append(f"{name}-{variant}")
    return names
