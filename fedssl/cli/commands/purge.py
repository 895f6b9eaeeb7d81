"""`fedssl purge`: remove the files of clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.completion import complete_run

Dirs = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR …",
        help="Run directories, caches of decoded images, or memory folders of Flower nodes.",
        autocompletion=complete_run,
    ),
]


def purge(
    dirs: Dirs,
    memory: Annotated[
        bool,
        typer.Option(
            help="Remove the memory of clients, and the features they shared.", show_default=False
        ),
    ] = False,
    models: Annotated[
        bool, typer.Option(help="Remove models of single clients.", show_default=False)
    ] = False,
    cache: Annotated[bool, typer.Option(help="Remove decoded images.", show_default=False)] = False,
    audit: Annotated[
        bool, typer.Option(help="Remove DIR/audit, which shows images.", show_default=False)
    ] = False,
    report: Annotated[
        bool,
        typer.Option(
            help="Remove DIR/report.html, which has image counts of clients.", show_default=False
        ),
    ] = False,
    checkpoints: Annotated[
        bool,
        typer.Option(help="Remove the checkpoints of the server's models.", show_default=False),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="All of these. No option: all but the checkpoints.")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="List the files; remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask to confirm.")] = False,
) -> None:
    """Remove the files of clients; keep the server's backbones, the results and the logs.

    Runs whose files are removed can no longer be resumed. This is not secure erasure.
    """
    from fedssl.cli.purge import purge_folders
    from fedssl.runs.client_files import DEFAULT, GROUPS, Group

    options: dict[Group, bool] = {
        "memory": memory,
        "models": models,
        "cache": cache,
        "audit": audit,
        "report": report,
        "checkpoints": checkpoints,
    }
    groups = {group for group, chosen in options.items() if chosen} or set(DEFAULT)
    if everything:
        groups = set(GROUPS)
    purge_folders(dirs, groups, dry_run=dry_run, yes=yes)
