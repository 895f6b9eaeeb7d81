"""`fedssl doctor`: check the installation, and who may read folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.completion import complete_run
from fedssl.cli.options import AsJson

Dirs = Annotated[
    list[Path],
    typer.Argument(
        metavar="[DIR …]",
        help="Run directories, caches or memory folders of nodes: may others read them?",
        autocompletion=complete_run,
    ),
]


def doctor(
    dirs: Dirs = [],  # noqa: B006 - typer reads the default and does not change it
    as_json: AsJson = False,
) -> None:
    """Check the installation: packages, optional dependencies, GPUs and problems.

    Also check that other users of this machine cannot read the caches of decoded images, the memory
    of a Flower node, and the folders that are named.
    """
    from fedssl.cli.doctor import examine, print_report

    report = examine(dirs)
    if as_json:
        print(json.dumps(report))
    else:
        print_report(report)
