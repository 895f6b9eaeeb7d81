"""fedssl flower: write a Flower app, or run a whole federation on this machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fedssl.errors import ConfigError

flower = typer.Typer(no_args_is_help=True, help="Run on Flower: clients on their own machines.")

Name = Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A recipe's name or an experiment's TOML file.")]
Sets = Annotated[list[str], typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change a setting; repeatable.")]


@flower.command()
def init(
    dir: Annotated[Path, typer.Argument(help="The folder to write: new, or empty.")],
    name: Name = "demo",
    set: Sets = [],  # noqa: B006 - typer reads it, nobody changes it
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the server, and simulated nodes, find images; none: nowhere.")
    ] = None,
) -> None:
    """Write a Flower app for an experiment: `flwr run` works on it."""
    from fedssl.experiment import load
    from fedssl.runtimes.flower.template import write_app

    experiment = load(name, set)
    title = Path(name).name.removesuffix(".toml")
    write_app(dir, title, experiment, {"data-dir": str(data_dir.resolve())} if data_dir else {})
    print(f"wrote {dir}; its README.md says how to go on")


@flower.command()
def up(
    name: Name,
    clients: Annotated[
        int | None, typer.Option(min=1, help="How many SuperNodes; else as the experiment says.")
    ] = None,
    set: Sets = [],  # noqa: B006
    dir: Annotated[Path | None, typer.Option(help="The run directory; goes on where it stands.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto; for the server and every node.")] = "auto",
    data_dir: Annotated[Path, typer.Option(help="Where data sets lie, or are downloaded to.")] = Path("data"),
    quiet: Annotated[bool, typer.Option(help="No progress, only the result.")] = False,
) -> None:
    """Run an experiment on a SuperLink and SuperNodes on this machine, with TLS and keys made for the occasion."""
    from fedssl.changes import parse_assignment
    from fedssl.experiment import load
    from fedssl.report.table import print_results
    from fedssl.run import Run, default_dir

    if find_spec("flwr") is None:
        raise ConfigError('Flower is not installed: pip install "fedssl[flower]"')
    from fedssl.runtimes.flower.up import up as run_here

    changes = dict(map(parse_assignment, set)) | ({"clients": clients} if clients else {})
    experiment = load(name, changes)
    title = Path(name).name.removesuffix(".toml")
    folder = dir or default_dir(f"flower-{title}", experiment, bool(changes))
    run_here(experiment, folder, data_dir, title, device, quiet)
    print_results(Run(folder, data_dir, device))
