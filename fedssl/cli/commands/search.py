"""`fedssl search`: find the images that are most similar to a query image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.options import (
    AsJson,
    BackbonePlace,
    Imports,
    ModelName,
    OneDevice,
    Quiet,
    check_output_file,
    messages,
)
from fedssl.core.user_modules import import_modules


def search(
    dir: BackbonePlace,
    query: Annotated[Path, typer.Argument(metavar="QUERY", help="Image file.")],
    images: Annotated[
        Path,
        typer.Argument(metavar="IMAGES", help="Folder of images, or its features.npz."),
    ],
    k: Annotated[int, typer.Option("-k", help="Number of images to find.")] = 12,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also draw the result: a PNG file.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder of the images, if IMAGES is features.npz and --out is used."),
    ] = None,
    model: ModelName = None,
    device: OneDevice = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
    imports: Imports = [],  # noqa: B006
) -> None:
    """Find the images of a folder that are most similar to a query image.

    Similarity is the cosine of the angle between features. `fedssl embed` computes the features of
    a folder once, for many searches.
    """
    check_output_file(out, ".png")
    import_modules(imports)

    from fedssl.cli.neighbours import Query, run_search
    from fedssl.downstream.backbone import load_backbone

    wanted = Query(query, images, k, out=out, folder=folder)
    wanted.check()
    backbone = load_backbone(dir, model, device=device)
    run_search(backbone, wanted, messages(quiet), as_json=as_json)
