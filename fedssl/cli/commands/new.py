"""`fedssl new`: write an experiment for a folder of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.options import Views, check_output_file
from fedssl.core.errors import ConfigError

Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="TOML file to write; FOLDER.toml if not set.")
]
Layout = Annotated[
    str | None,
    typer.Option(
        help="What the folders are: clients, classes, clients-classes (in each client's folder, "
        "one folder per class) or flat (no folders); detected if not set."
    ),
]
Machine = Annotated[
    str | None,
    typer.Option(
        help="Hardware to choose the network for: cpu (a small CNN) or gpu (ResNet-18); detected "
        "if not set."
    ),
]
Test = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Labelled images to measure on, with one folder for each class."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]


def new(
    folder: Annotated[Path, typer.Argument(help="Folder of images.")],
    out: Out = None,
    views: Views = None,
    layout: Layout = None,
    machine: Machine = None,
    test: Test = None,
    force: Force = False,
) -> None:
    """Write an experiment for a folder of images: a TOML file that explains its settings."""
    file = out or Path(f"{folder.resolve().name}.toml")
    check_output_file(file, ".toml")
    if file.exists() and not force:
        raise ConfigError(
            f"{file} exists: choose another file with -o, or overwrite it with --force"
        )

    from fedssl.cli.new_experiment import write_experiment

    write_experiment(folder, file, views=views, layout=layout, machine=machine, test=test)
