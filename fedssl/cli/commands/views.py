"""`fedssl views`: draw augmented views of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.options import DataDir, Name, Sets, check_output_file

PresetOrAll = Annotated[
    str | None,
    typer.Option(
        metavar="PRESET",
        help="View preset: photo, microscopy, xray or texture; all shows them side by side.",
    ),
]


def views(
    name: Name,
    set: Sets = [],  # noqa: B006
    views: PresetOrAll = None,
    data_dir: DataDir = Path("data"),
    out: Annotated[Path, typer.Option(help="PNG file to write.")] = Path("views.png"),
) -> None:
    """Draw some training images of each client with their augmented views."""
    from fedssl.cli.view_sheet import write_sheet

    check_output_file(out, ".png")
    write_sheet(name, set, views, data_dir, out)
    print(f"wrote {out}")
