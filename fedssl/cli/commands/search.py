"""`fedssl search`: find the images that are most similar to a query image."""

from __future__ import annotations

import json
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
)
from fedssl.core.errors import ConfigError
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
    if images.is_dir():
        folder = images
    elif out is not None and folder is None:
        raise ConfigError(f"a picture needs the image files: name their folder with --folder")
    import_modules(imports)

    from fedssl.cli.neighbours import print_neighbours
    from fedssl.core.console import ignore_message, print_to_stderr
    from fedssl.downstream.backbone import load_backbone
    from fedssl.downstream.embed import embed, read_embeddings
    from fedssl.downstream.search import draw_result
    from fedssl.downstream.search import search as find

    backbone = load_backbone(dir, model, device=device)
    notify = ignore_message if quiet else print_to_stderr
    backbone.features(query)  # a query that cannot be read is reported before the folder is
    if images.is_dir():
        embeddings = embed(backbone, images, notify=notify)
    else:
        embeddings = read_embeddings(images)
    neighbours = find(backbone, query, embeddings, k, folder=folder)
    if as_json:
        print(json.dumps([neighbour._asdict() for neighbour in neighbours]))
    else:
        print_neighbours(neighbours)
    if out is not None and folder is not None:
        draw_result(query, folder, neighbours, out)
        notify(f"wrote {out}")
