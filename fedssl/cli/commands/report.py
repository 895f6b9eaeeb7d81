"""`fedssl report`: write a page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.options import DataDir, Device, Imports, RunDirs, check_output_file
from fedssl.core.user_modules import import_modules


def report(
    dirs: RunDirs,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="HTML file to write; by default DIR/report.html for one run, report.html for "
            "several.",
        ),
    ] = None,
    images: Annotated[
        bool, typer.Option(help="Show pictures of test images, never of training images.")
    ] = True,
    data_dir: DataDir = Path("data"),
    device: Device = "auto",
    imports: Imports = [],  # noqa: B006 - typer reads the default and does not change it
) -> None:
    """Write one HTML file about a run, or about several compared runs.

    The file is self-contained: it loads nothing from the network.
    """
    check_output_file(out, ".html")
    import_modules(imports)

    from fedssl.pages.report.report import report as write_report

    path = write_report(dirs, out, images=images, data_dir=data_dir, device=device)
    print(f"report  {path}")
