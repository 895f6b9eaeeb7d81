"""`fedssl evaluate`: measure the models of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedssl.cli.completion import complete_run
from fedssl.cli.options import AsJson, DataDir, Device, Imports
from fedssl.core.errors import ConfigError
from fedssl.core.user_modules import import_modules

Probe = Annotated[
    str,
    typer.Option(
        help="How to measure: knn, linear, semi, classifier, per-client or collaborative."
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Data set to measure on, such as cifar10 (default: that of the run)."
    ),
]

ProbeSets = Annotated[
    list[str],
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="Change a setting of the probe; repeatable."
    ),
]


def evaluate(
    dir: Annotated[
        Path, typer.Argument(metavar="DIR", help="Run directory.", autocompletion=complete_run)
    ],
    probe: Probe = "linear",
    on: On = None,
    set: ProbeSets = [],  # noqa: B006
    device: Device = "auto",
    data_dir: DataDir = Path("data"),
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Measure the models of a run again, with another probe or on other images.

    A probe measures a backbone, usually by a small classifier on its features. --set labels=100
    changes probe.labels; with --on, --set data.holdout=500 changes a setting of the other data set.
    """
    import_modules(imports)

    from fedssl.cli.score import print_score
    from fedssl.core.provenance import code
    from fedssl.experiment.plain_values import parse_assignments
    from fedssl.runs.run import Run

    probe_settings, data_settings = _split_settings(parse_assignments(set))
    if data_settings and on is None:
        raise ConfigError(
            "--set data.… changes the data set named by --on, but there is no --on: add --on NAME"
        )
    data = None if on is None else data_settings | {"name": on}
    run = Run(dir, data_dir, device)
    score = run.evaluate(probe, data, **probe_settings)
    if len(run.rounds) < run.experiment.rounds and not run.results:
        score.add_note("the run is not finished: this is its newest checkpoint")
    if as_json:
        print(json.dumps({"probe": probe, "code": code()} | score.details()))
    else:
        print_score(probe, data or run.experiment.to_dict()["data"], score)


def _split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the probe and those of the data set, without their prefixes."""
    probe: dict[str, Any] = {}
    data: dict[str, Any] = {}
    for key, value in settings.items():
        if key.startswith("data."):
            data[key.removeprefix("data.")] = value
        else:
            probe[key.removeprefix("probe.")] = value
    return probe, data
