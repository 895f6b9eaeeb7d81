"""`fedssl analyse`: analyse runs beyond their accuracy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.completion import complete_run
from fedssl.cli.options import AsJson, DataDir, Device, Imports, Sets
from fedssl.core.user_modules import import_modules

Kind = Annotated[
    str,
    typer.Argument(
        metavar="KIND",
        help="angles (between features), communication (bytes), divergence (of clients), "
        "false-negatives (negatives of the same class), map (of test images) or weights "
        "(distances between models).",
    ),
]


def analyse(
    kind: Kind,
    dirs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR …", help="Run directories.", autocompletion=complete_run),
    ] = None,
    set: Sets = [],  # noqa: B006
    out: Annotated[
        Path | None,
        typer.Option(help="Write OUT.json and OUT.png instead of files in the run directory."),
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = Path("data"),
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Analyse runs, for example their communication cost; write a table, JSON and PNG files.

    The files are DIR/analysis/KIND.json and .png.
    --set images=500 changes a setting of the analysis.
    """
    import_modules(imports)

    from fedssl.analysis import analyse as run_analysis
    from fedssl.cli.analysis_summary import print_summary
    from fedssl.experiment.plain_values import parse_assignment

    settings = {}
    for assignment in set:
        key, value = parse_assignment(assignment)
        settings[key.removeprefix(f"{kind}.")] = value
    done = run_analysis(kind, dirs or [], out, device=device, data_dir=data_dir, set=settings)
    if as_json:
        print(json.dumps(done.results))
    else:
        print_summary(done.summary, done.json, done.png)
