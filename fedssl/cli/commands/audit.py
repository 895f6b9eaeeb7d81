"""`fedssl audit`: measure what attackers can learn from a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.completion import complete_run
from fedssl.cli.options import AsJson, DataDir, Device, Imports, Quiet
from fedssl.core.user_modules import import_modules

Attacks = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="Attacks, comma-separated: inversion (of updates), membership (in the training "
        "images) and features (that clients share).",
    ),
]
Images = Annotated[
    int, typer.Option(help="Images that inversion tries to reconstruct, for each batch size.")
]
Seed = Annotated[int, typer.Option(help="Seed of the attacks.")]
AuditSets = Annotated[
    list[str],
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="Change a setting of the audit; repeatable."
    ),
]


def audit(
    dir: Annotated[
        Path, typer.Argument(metavar="DIR", help="Run directory.", autocompletion=complete_run)
    ],
    attacks: Attacks = "inversion,membership,features",
    images: Images = 8,
    seed: Seed = 0,
    set: AuditSets = [],  # noqa: B006
    device: Device = "auto",
    data_dir: DataDir = Path("data"),
    imports: Imports = [],  # noqa: B006
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Attack a run, to measure what attackers can learn about its images.

    Each attack is compared with guessing. The files are DIR/audit/audit.json and audit.png, which
    shows private images and is for their owner only. --set iterations=1000 changes a setting.
    """
    import_modules(imports)

    from fedssl.analysis.audit import audit as run_audit
    from fedssl.cli.analysis_summary import print_summary
    from fedssl.core.console import ignore_message, print_to_stderr
    from fedssl.experiment.plain_values import parse_assignments

    settings = {"images": images, "seed": seed, **parse_assignments(set)}
    names = [name.strip() for name in attacks.split(",") if name.strip()]
    done = run_audit(
        dir,
        attacks=names,
        device=device,
        data_dir=data_dir,
        notify=ignore_message if quiet else print_to_stderr,
        set=settings,
    )
    if as_json:
        print(json.dumps(done.results))
    else:
        print_summary(done.summary, done.json, done.png)
