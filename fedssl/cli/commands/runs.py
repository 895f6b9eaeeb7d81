"""`fedssl runs`: list run directories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.options import AsJson


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder of run directories.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs: state, accuracy, time, and how each differs from the most similar one."""
    from fedssl.cli.run_list import print_runs

    print_runs(folder, as_json)
