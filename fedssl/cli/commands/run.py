"""`fedssl run`: run an experiment."""

from __future__ import annotations

import json
from pathlib import Path

from fedssl.cli.options import (
    AsJson,
    DataDir,
    Device,
    Imports,
    Name,
    Quiet,
    RunDir,
    Sets,
    Views,
    with_views,
)
from fedssl.core.user_modules import import_modules


def run(
    name: Name,
    set: Sets = [],  # noqa: B006 - typer reads the default and does not change it
    dir: RunDir = None,
    device: Device = "auto",
    data_dir: DataDir = Path("data"),
    views: Views = None,
    imports: Imports = [],  # noqa: B006
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run or resume an experiment, and measure the final backbone."""
    from fedssl.experiment.lookup import check_source
    from fedssl.experiment.plain_values import parse_assignments

    check_source(name)
    changes = parse_assignments(with_views(set, views))
    import_modules(imports)

    from fedssl.cli.results import print_results
    from fedssl.runs.run import run as run_experiment

    finished = run_experiment(name, dir, device, data_dir=data_dir, quiet=quiet, set=changes)
    if as_json:
        print(json.dumps({"dir": str(finished.dir)} | finished.results))
    else:
        print_results(finished)
