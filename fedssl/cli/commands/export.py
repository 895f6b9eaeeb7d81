"""`fedssl export`: write a backbone or a classifier for other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.completion import complete_run
from fedssl.cli.options import Imports, ModelName
from fedssl.core.user_modules import import_modules

Place = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="Run directory, exported backbone, hub folder, or file of a classifier.",
        autocompletion=complete_run,
    ),
]


def export(
    dir: Place,
    to: Annotated[
        str,
        typer.Option(metavar="FORMAT", help="torch, torchvision, timm, onnx or hub."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File or folder to write; default: named after DIR."),
    ] = None,
    model: ModelName = None,
    normalise: Annotated[
        bool,
        typer.Option(
            help="For torch and onnx: include the normalisation, so that the file takes uint8 "
            "pixels; without it, the file takes normalised images."
        ),
    ] = True,
    force: Annotated[bool, typer.Option(help="Replace the files of an existing export.")] = False,
    imports: Imports = [],  # noqa: B006
) -> None:
    """Write a backbone for another library, load it there, and compare its features.

    Nothing is written if the features differ by more than rounding errors.
    """
    import_modules(imports)

    from fedssl.downstream.export import export as run_export

    done = run_export(dir, to, out, model=model, normalise=normalise, force=force)
    compared = done.comparison
    print(f"wrote {done.path}")
    print(
        f"largest difference from fedssl on {compared.images} images: {compared.difference:.2g} "
        f"(largest value {compared.largest:.3g}, accepted up to {compared.limit:.2g})"
    )
    print(f"load it with:\n\n{done.lines}", end="")
