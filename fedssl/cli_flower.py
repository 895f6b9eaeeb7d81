"""fedssl flower: write a Flower app, or run a whole federation on this machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli_options import DataDir, Name, Quiet, RunDir, Sets
from fedssl.errors import ConfigError

flower = typer.Typer(no_args_is_help=True, help="Run on Flower: clients on their own machines.")


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
        int | None,
        typer.Option(min=1, help="How many SuperNodes; the experiment's clients are dealt among them. Else one each."),
    ] = None,
    set: Sets = [],  # noqa: B006
    dir: RunDir = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto; for the server and every node.")] = "auto",
    data_dir: DataDir = Path("data"),
    quiet: Quiet = False,
) -> None:
    """Run an experiment on a SuperLink and SuperNodes on this machine, with TLS and keys made for the occasion."""
    from fedssl.changes import parse_assignments
    from fedssl.experiment import load
    from fedssl.report.table import print_results
    from fedssl.run import Run, default_dir

    _need_flower()
    from fedssl.runtimes.flower.up import up as run_here

    changes = parse_assignments(set)
    experiment = load(name, changes)
    title = Path(name).name.removesuffix(".toml")
    folder = dir or default_dir(f"flower-{title}", experiment, bool(changes))
    run_here(experiment, folder, data_dir, title, device, quiet, clients)
    print_results(Run(folder, data_dir, device))


@flower.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def only(
    app: Annotated[Path, typer.Argument(help="The folder of the app, as `fedssl flower init` wrote it.")],
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="flower-superlink or flower-supernode, and its options.")
    ],
) -> None:
    """Start a SuperLink or a SuperNode that runs this app and no other, whoever submits what."""
    _need_flower()
    from fedssl.runtimes.flower.only import start

    start(app, command)


def _need_flower() -> None:
    if find_spec("flwr") is None:
        raise ConfigError('Flower is not installed: pip install "fedssl[flower]"')
