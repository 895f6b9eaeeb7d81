"""`fedssl runs`: list run directories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.options import AsJson, Imports
from fedssl.core.user_modules import import_modules


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder of run directories.")] = Path("runs"),
    imports: Imports = [],  # noqa: B006 - typer reads the default and does not change it
    as_json: AsJson = False,
) -> None:
    """List runs with state, accuracy, training time, and differences from the most similar run."""
    import_modules(imports)

    from fedssl.cli.run_list import print_runs

    print_runs(folder, as_json)
