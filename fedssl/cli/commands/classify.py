"""`fedssl classify`: train a classifier on a few labelled images, and use it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.completion import complete_run
from fedssl.cli.options import (
    AsJson,
    Imports,
    ModelName,
    OneDevice,
    Quiet,
    check_output_file,
    messages,
)
from fedssl.core.user_modules import import_modules

Place = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="Run directory, exported backbone or hub folder; or the file of a classifier, which "
        "needs no labelled images.",
        autocompletion=complete_run,
    ),
]


def classify(
    dir: Place,
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="LABELLED [IMAGES]",
            help="Folder of labelled images, one folder per class; folder of images to classify.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="CSV file of predictions; default: predictions.csv."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write backbone, head and classes as one .safetensors file."),
    ] = None,
    model: ModelName = None,
    device: OneDevice = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
    imports: Imports = [],  # noqa: B006
) -> None:
    """Train a classifier on a few labelled images, measure it, and classify other images.

    The classifier is a linear layer on the features of the backbone. Its accuracy is
    cross-validated.
    """
    check_output_file(out, ".csv")
    check_output_file(save, ".safetensors", "--save")
    import_modules(imports)

    from fedssl.cli.classification import Classification, run_classification

    wanted = Classification(dir, tuple(folders), out=out, save=save, model=model, device=device)
    run_classification(wanted, messages(quiet), as_json=as_json)
