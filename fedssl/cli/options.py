"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.completion import complete_run, complete_source
from fedssl.core.console import Notify, ignore_message, print_to_stderr
from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import check_replaceable

BackbonePlace = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="Run directory, exported backbone, or folder that `export --to hub` wrote.",
        autocompletion=complete_run,
    ),
]
ModelName = Annotated[
    str | None, typer.Option("--model", help="Name of the backbone, if the run has several.")
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME_OR_FILE",
        help="Name of a recipe, or TOML file of an experiment.",
        autocompletion=complete_source,
    ),
]
Sets = Annotated[
    list[str],
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change a setting; repeatable."),
]
RunDir = Annotated[
    Path | None,
    typer.Option(help="Run directory; resumed if it exists.", autocompletion=complete_run),
]
RunDirs = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR …",
        help="Run directories, or folders that contain run directories.",
        autocompletion=complete_run,
    ),
]
Imports = Annotated[
    list[str],
    typer.Option(
        "--import",
        metavar="FILE_OR_MODULE",
        help="Import a module that registers your own classes, such as methods; repeatable.",
    ),
]
DataDir = Annotated[Path, typer.Option(help="Directory of data sets; also used for downloads.")]
Device = Annotated[
    str,
    typer.Option(
        help="cpu, cuda (all CUDA devices), cuda:N (one of them), or auto (cuda if available)."
    ),
]
OneDevice = Annotated[
    str,
    typer.Option(help="cpu, cuda (the first CUDA device), cuda:N, or auto (cuda if available)."),
]
Views = Annotated[
    str | None,
    typer.Option(
        metavar="PRESET",
        help="Augmentation preset, for the random views: photo, grey, microscopy, xray or texture.",
    ),
]
Quiet = Annotated[bool, typer.Option(help="Print only the result, no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def with_views(assignments: list[str], preset: str | None) -> list[str]:
    """Return the assignments of --set, after that of --views if it is set."""
    if preset is None:
        return assignments
    return [f"method.augment.preset={preset}", *assignments]


def messages(quiet: bool) -> Notify:
    """Return the function that messages are passed to."""
    if quiet:
        return ignore_message
    return print_to_stderr


def check_output_file(path: Path | None, suffix: str = "", option: str = "--out") -> None:
    """Raise ConfigError if a file cannot be written; called before any image is read.

    `option` is the flag that names the file.
    """
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"{path} cannot be written: it is a folder")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")
    if suffix and path.suffix.lower() != suffix:
        raise ConfigError(f"{path} cannot be written: the name must end in {suffix}")
    check_replaceable(path, option)
