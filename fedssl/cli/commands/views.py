"""`fedssl views`: draw augmented views of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.options import DataDir, Imports, Name, Sets, check_output_file
from fedssl.core.user_modules import import_modules

PresetOrAll = Annotated[
    str | None,
    typer.Option(
        metavar="PRESET",
        help='Augmentation preset: photo, grey, microscopy, xray or texture; "all" draws every '
        "preset.",
    ),
]


def views(
    name: Name,
    set: Sets = [],  # noqa: B006
    views: PresetOrAll = None,
    data_dir: DataDir = Path("data"),
    imports: Imports = [],  # noqa: B006
    out: Annotated[Path, typer.Option(help="PNG file to write.")] = Path("views.png"),
) -> None:
    """Draw some training images of each client with their augmented views."""
    check_output_file(out, ".png")
    import_modules(imports)

    from fedssl.cli.view_sheet import write_sheet

    write_sheet(name, set, views, data_dir, out)
    print(f"wrote {out}")
