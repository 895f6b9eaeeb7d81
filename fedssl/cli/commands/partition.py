"""`fedssl partition`: show how images are distributed over clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.options import AsJson, DataDir, Imports, Name, Sets, check_output_file
from fedssl.core.user_modules import import_modules


def partition(
    name: Name,
    set: Sets = [],  # noqa: B006
    data_dir: DataDir = Path("data"),
    picture: Annotated[
        Path | None, typer.Option(help="Draw the counts, clients × classes, to this PNG file.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help='Write the indices as JSON, for partition.name = "listed".'),
    ] = None,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Print the number of images of each client, by class if there are labels."""
    check_output_file(picture, ".png", "--picture")
    check_output_file(save, option="--save")
    import_modules(imports)

    from fedssl.cli.partition import show_partition
    from fedssl.experiment.experiment import load

    show_partition(load(name, set), data_dir, picture=picture, save=save, as_json=as_json)
