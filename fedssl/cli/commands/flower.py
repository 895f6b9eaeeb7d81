"""`fedssl flower`: write a Flower app, or run a whole federation on this machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedssl.cli.options import DataDir, Imports, Name, Quiet, RunDir, Sets
from fedssl.core.errors import ConfigError
from fedssl.core.user_modules import import_modules

if TYPE_CHECKING:
    from fedssl.experiment.experiment import Experiment

flower = typer.Typer(
    no_args_is_help=True,
    help="Train with Flower, with each client on its own machine.",
)


@flower.command()
def init(
    dir: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to write; must be new or empty.")
    ],
    name: Name = "demo",
    set: Sets = [],  # noqa: B006 - typer reads the default and does not change it
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Directory of the images of the server and of simulated nodes."),
    ] = None,
    imports: Imports = [],  # noqa: B006
) -> None:
    """Write a Flower app for an experiment, to be started with `flwr run`."""
    from fedssl.experiment.lookup import check_source

    check_source(name)
    import_modules(imports)

    from fedssl.experiment.experiment import load
    from fedssl.flower.app_template import write_app

    experiment = load(name, set)
    config = {"data-dir": str(data_dir.resolve())} if data_dir else {}
    write_app(dir, _title(name), experiment, config)
    print(f"wrote {dir}; see its README.md for the next steps")


SuperNodes = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of SuperNodes that share the experiment's clients; by default one each.",
    ),
]
SecureAggregation = Annotated[
    bool,
    typer.Option(
        "--secure-aggregation", help="Mask uploads, so that the server receives sums only."
    ),
]


@flower.command()
def up(
    name: Name,
    clients: SuperNodes = None,
    set: Sets = [],  # noqa: B006
    dir: RunDir = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:N or auto; for the server and every node.")
    ] = "auto",
    data_dir: DataDir = Path("data"),
    secure_aggregation: SecureAggregation = False,
    imports: Imports = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Run an experiment on a local SuperLink and SuperNodes, with TLS and new keys."""
    from fedssl.cli.results import print_results
    from fedssl.experiment.plain_values import parse_assignments
    from fedssl.runs.directories import titled_experiment
    from fedssl.runs.run import Run

    _check_flower()
    import_modules(imports)
    from fedssl.flower.absolute_paths import with_absolute_paths
    from fedssl.flower.local_federation import run_local_federation

    # The processes of the federation have another current directory.
    title, original, experiment = titled_experiment(name, parse_assignments(set))
    experiment = with_absolute_paths(experiment, data_dir)
    original = with_absolute_paths(original, data_dir)
    folder = dir or _default_dir(title, experiment, original, device)
    run_local_federation(
        experiment,
        folder,
        data_dir,
        title=title,
        device=device,
        quiet=quiet,
        nodes=clients,
        secure_aggregation=secure_aggregation,
    )
    print_results(Run(folder, data_dir, device))


PASS_OPTIONS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@flower.command("only", hidden=True, context_settings=PASS_OPTIONS_ON)  # its earlier name
@flower.command(context_settings=PASS_OPTIONS_ON)
def pinned(
    app: Annotated[Path, typer.Argument(help="Folder of an app that `fedssl flower init` wrote.")],
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND...", help="flower-superlink or flower-supernode, and its options."
        ),
    ],
) -> None:
    """Start a SuperLink or a SuperNode that runs this app and rejects all others."""
    _check_flower()
    from fedssl.flower.app_pinning import start_pinned

    start_pinned(app, command)


def _default_dir(title: str, experiment: Experiment, original: Experiment, device: str) -> Path:
    from fedssl.core.devices.select import resolve_device
    from fedssl.runs.directories import default_dir

    return default_dir(f"flower-{title}", experiment, original, resolve_device(device))


def _title(name: str) -> str:
    """Return the name of a recipe, or of a file without its folder and suffix."""
    return Path(name).name.removesuffix(".toml")


def _check_flower() -> None:
    if find_spec("flwr") is None or find_spec("psutil") is None:
        raise ConfigError('Flower is not installed: in a clone of fedssl, pip install ".[flower]"')
