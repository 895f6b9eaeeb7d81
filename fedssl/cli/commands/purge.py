"""`fedssl purge`: remove the files of clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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


def _selection(help: str) -> Any:
    """Return an option that selects files; without any, the default depends on the files."""
    return typer.Option(help=help, show_default=False)


Memory = Annotated[bool, _selection("Remove the memory of clients, and the features they shared.")]
Models = Annotated[bool, _selection("Remove models of single clients.")]
Cache = Annotated[bool, _selection("Remove decoded images.")]
Audit = Annotated[bool, _selection("Remove DIR/audit, which shows images.")]
Report = Annotated[bool, _selection("Remove DIR/report.html, which has image counts of clients.")]
Checkpoints = Annotated[bool, _selection("Remove the checkpoints of the server's models.")]


def purge(
    dirs: Dirs,
    memory: Memory = False,
    models: Models = False,
    cache: Cache = False,
    audit: Audit = False,
    report: Report = False,
    checkpoints: Checkpoints = False,
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
