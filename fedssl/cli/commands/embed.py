"""`fedssl embed`: write the features of the images in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.options import (
    BackbonePlace,
    Imports,
    ModelName,
    OneDevice,
    Quiet,
    check_output_file,
    messages,
)
from fedssl.core.user_modules import import_modules


def embed(
    dir: BackbonePlace,
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="Folder of images.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write: .npz (numpy) or .csv.")
    ] = Path("features.npz"),
    model: ModelName = None,
    device: OneDevice = "auto",
    quiet: Quiet = False,
    imports: Imports = [],  # noqa: B006
) -> None:
    """Write the features of all images in a folder and its subfolders.

    Files that cannot be read are skipped and listed.
    """
    check_output_file(out)
    import_modules(imports)

    from fedssl.downstream.backbone import load_backbone
    from fedssl.downstream.embed import check_suffix, write_embeddings

    check_suffix(out)
    backbone = load_backbone(dir, model, device=device)
    written = write_embeddings(backbone, images, out, notify=messages(quiet))
    print(f"wrote {out}: {backbone.dim} features of {written.images:,} images")
