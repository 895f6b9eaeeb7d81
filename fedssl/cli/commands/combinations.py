"""`fedssl combinations`: print the compatibility matrix."""

from __future__ import annotations

from typing import Annotated

import typer


def combinations(
    train: Annotated[
        bool,
        typer.Option("--train", help="Also train each combination for two rounds on tiny images."),
    ] = False,
) -> None:
    """Print which methods, algorithms and topologies can be combined, as Markdown."""
    from fedssl.cli.combinations import attempts, compatibility_tables, images

    verdicts = dict(attempts(images() if train else None))
    print(compatibility_tables(verdicts))
    if any(verdict.failed for verdict in verdicts.values()):
        raise typer.Exit(1)
