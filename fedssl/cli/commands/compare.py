"""`fedssl compare`: compare finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.options import AsJson, Imports, RunDirs, check_output_file
from fedssl.core.user_modules import import_modules


def compare(
    dirs: RunDirs,
    out: Annotated[Path, typer.Option(help="PNG file of the comparison plot.")] = Path(
        "compare.png"
    ),
    as_json: AsJson = False,
    imports: Imports = [],  # noqa: B006
) -> None:
    """Compare finished runs: mean accuracy over seeds, and gains over the first run.

    A gain has a 95% confidence interval.

    Runs that differ only in their seeds are averaged.
    """
    check_output_file(out, ".png")
    import_modules(imports)

    from fedssl.cli.comparison import compare_runs

    compare_runs(dirs, out, as_json)
