"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A recipe's name or an experiment's TOML file.")]
Sets = Annotated[list[str], typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change a setting; repeatable.")]
RunDir = Annotated[Path | None, typer.Option(help="The run directory; goes on where it stands.")]
DataDir = Annotated[Path, typer.Option(help="Where data sets lie, or are downloaded to.")]
Quiet = Annotated[bool, typer.Option(help="No progress, only the result.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]
