"""`fedssl run`: run an experiment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from fedssl.core.errors import ConfigError
from fedssl.core.user_modules import import_modules

if TYPE_CHECKING:
    from fedssl.runs.run import Run

Baselines = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Baselines to compare with, comma-separated: random (an untrained backbone), start "
        "(the weights of method.init), isolated (each client alone), centralized. Default: random, "
        "or start with method.init, and isolated if training it takes at most twice as long as the "
        "run.",
    ),
]
NoBaselines = Annotated[bool, typer.Option("--no-baselines", help="Compare with no baseline.")]
Seeds = Annotated[
    int, typer.Option(min=1, help="Run this many seeds; report their mean and spread.")
]
Estimate = Annotated[
    bool,
    typer.Option("--estimate", help="Print the planned training and its estimated time; exit."),
]
Track = Annotated[
    list[str],
    typer.Option(
        metavar="NAME",
        help="Send rounds and results to tensorboard, mlflow or wandb; repeatable, or "
        "comma-separated.",
    ),
]


def run(
    name: Name,
    set: Sets = [],  # noqa: B006 - typer reads the default and does not change it
    dir: RunDir = None,
    device: Device = "auto",
    data_dir: DataDir = Path("data"),
    views: Views = None,
    baselines: Baselines = None,
    no_baselines: NoBaselines = False,
    seeds: Seeds = 1,
    estimate: Estimate = False,
    track: Track = [],  # noqa: B006
    imports: Imports = [],  # noqa: B006
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment: train, or resume training, and evaluate the backbone."""
    from fedssl.experiment.lookup import check_source
    from fedssl.experiment.plain_values import parse_assignments
    from fedssl.runs.trackers import tracker_names

    check_source(name)
    trackers = tracker_names(track)
    changes = parse_assignments(with_views(set, views)) | _baselines(baselines, no_baselines)
    import_modules(imports)

    from fedssl.experiment.experiment import load

    load(name, changes)  # a misspelt key is reported before more modules are imported

    if estimate:
        _print_estimate(
            name, seeds, as_json, dir=dir, device=device, data_dir=data_dir, set=changes
        )
        return

    from fedssl.runs.run_seeds import run_seeds

    start = partial(run_seeds, data_dir=data_dir, quiet=quiet, changes=changes, track=trackers)
    _print_finished(start(name, seeds, dir, device), as_json)


def _print_finished(finished: Sequence[Run], as_json: bool) -> None:
    """Print the results of a run, or of several seeds."""
    from fedssl.cli.results import print_results, print_seeds, seeds_as_values

    first = finished[0]
    if len(finished) > 1 and as_json:
        print(json.dumps(seeds_as_values(finished)))
    elif len(finished) > 1:
        print_seeds(finished)
    elif as_json:
        print(json.dumps({"dir": str(first.dir)} | first.results))
    else:
        print_results(first)


def _print_estimate(name: str, seeds: int, as_json: bool, **options: Any) -> None:
    """Print how long a run takes, with the options of `estimate`."""
    from fedssl.runs.estimate import estimate, with_seeds

    estimated = with_seeds(estimate(name, **options, quiet=as_json), seeds)
    if as_json:
        print(json.dumps(estimated.values()))
        return
    for line in estimated.lines:
        print(line)


def _baselines(names: str | None, none: bool) -> dict[str, Any]:
    """Return the setting that --baselines or --no-baselines changes."""
    if names is not None and none:
        raise ConfigError("--baselines and --no-baselines exclude each other: pass one of them")
    if none:
        return {"probe.baselines": []}
    if names is None:
        return {}
    return {"probe.baselines": [name.strip() for name in names.split(",") if name.strip()]}
