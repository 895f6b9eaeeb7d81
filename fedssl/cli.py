"""The command line: fedssl run, recipes, evaluate, analyse, partition, views, combinations, doctor; reproduce and sweep
are in cli_tables.py, finetune in cli_finetune.py, flower in cli_flower.py."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from fedssl import cli_finetune, cli_flower, cli_tables
from fedssl.cli_options import AsJson, DataDir, Name, Quiet, RunDir, Sets
from fedssl.errors import ConfigError, DataError, FedsslError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Pre-train vision backbones on unlabelled images that never leave their owners.",
)

PATIENCE = 10.0  # seconds a run has to end in
STOPPED = 130  # exit code of what was stopped by hand

Device = Annotated[str, typer.Option(help="cpu, cuda (all of them), cuda:N (that one), or auto: cuda if there is any.")]


def _version(asked: bool) -> None:
    if asked:
        from fedssl import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None: ...


@app.command()
def run(
    name: Name,
    set: Sets = [],  # noqa: B006 - typer reads it, nobody changes it
    dir: RunDir = None,
    device: Device = "auto",
    data_dir: DataDir = Path("data"),
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment, or go on with one, and measure the backbone it ends with."""
    from fedssl.changes import parse_assignments
    from fedssl.report.table import print_results
    from fedssl.run import run as run_experiment

    changes = parse_assignments(set)
    finished = run_experiment(name, dir, device, data_dir, quiet=quiet, set=changes)
    if as_json:
        print(json.dumps({"dir": str(finished.dir)} | finished.results))
    else:
        print_results(finished)


@app.command()
def recipes(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="NAME_OR_PATTERN", help='Show one, or list those like this: tau, "Table 6", "*-mu#".'),
    ] = None,
    toml: Annotated[str | None, typer.Option(metavar="NAME", help="Show this one, every default filled in.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the experiments that come with fedssl, paper by paper, or show one as TOML."""
    from fedssl.experiment import load
    from fedssl.report.recipes import chosen, is_one, print_recipes

    name = toml or (pattern if pattern and is_one(pattern) else None)
    if name is not None:
        experiment = load(name)
        print(json.dumps(experiment.to_dict()) if as_json else experiment.to_toml().rstrip("\n"))
        return
    found = chosen(pattern)
    if as_json:
        print(json.dumps({name: {"about": recipe.about, "source": recipe.source} for name, recipe in found.items()}))
    else:
        print_recipes(found)


@app.command()
def evaluate(
    dir: Annotated[Path, typer.Argument(help="A run directory.")],
    probe: Annotated[str, typer.Option(help="knn, linear, semi, classifier, per-client or collaborative.")] = "linear",
    on: Annotated[str | None, typer.Option(metavar="NAME", help="Another data set to measure with.")] = None,
    set: Sets = [],  # noqa: B006
    device: Device = "auto",
    data_dir: DataDir = Path("data"),
    as_json: AsJson = False,
) -> None:
    """Measure a run's models with a probe; --set labels=100 changes a setting under probe.

    With --on, --set data.size=64 changes one of that data set.
    """
    from fedssl.changes import parse_assignments
    from fedssl.report.score import print_score
    from fedssl.run import Run

    given = parse_assignments(set)
    settings = {key.removeprefix("probe."): value for key, value in given.items() if not key.startswith("data.")}
    table = {key.removeprefix("data."): value for key, value in given.items() if key.startswith("data.")}
    if table and on is None:
        raise ConfigError("--set data.… is for another data set to measure with: name it with --on")
    other = None if on is None else table | {"name": on}
    run = Run(dir, data_dir, device)
    score = run.evaluate(probe, other, **settings)
    if len(run.rounds) < run.experiment.rounds:
        score.add_note("the run is not finished: this is its newest checkpoint")
    if as_json:
        print(json.dumps({"probe": probe} | score.details()))
    else:
        print_score(probe, other or run.experiment.to_dict()["data"], score)


app.command()(cli_tables.reproduce)
app.command()(cli_tables.sweep)
app.add_typer(cli_finetune.finetune, name="finetune")
app.add_typer(cli_flower.flower, name="flower")


@app.command()
def analyse(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="angles, communication, divergence, false-negatives, map, scores, theory, weights."
        ),
    ],
    dirs: Annotated[list[Path] | None, typer.Argument(metavar="DIR …", help="Run directories.")] = None,
    set: Sets = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Write OUT.json and OUT.png, not into the run directory.")] = None,
    device: Device = "auto",
    data_dir: DataDir = Path("data"),
    as_json: AsJson = False,
) -> None:
    """Look into runs: write numbers and a picture to DIR/analysis/KIND.json and .png, and print a table.

    With --set images=500 a setting of that kind of analysis changes.
    """
    from fedssl.analysis import analyse as look_into
    from fedssl.changes import parse_assignment
    from fedssl.report.table import print_summary

    done = look_into(kind, dirs or [], out, device, data_dir, set=dict(map(parse_assignment, set)))
    if as_json:
        print(json.dumps(done.found))
    else:
        print_summary(done.summary, done.json, done.png)


@app.command()
def partition(
    name: Name,
    set: Sets = [],  # noqa: B006
    data_dir: DataDir = Path("data"),
    picture: Annotated[Path | None, typer.Option(help="Draw clients × classes into this PNG.")] = None,
    save: Annotated[Path | None, typer.Option(help='Write the index lists, for partition.name = "listed".')] = None,
    as_json: AsJson = False,
) -> None:
    """Show how an experiment deals its images to clients."""
    from fedssl.experiment import load
    from fedssl.report.partition import show_partition

    _writable(picture, ".png")
    _writable(save)
    show_partition(load(name, set), data_dir, picture, save, as_json)


@app.command()
def views(
    name: Name,
    set: Sets = [],  # noqa: B006
    data_dir: DataDir = Path("data"),
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("views.png"),
) -> None:
    """Draw a sheet of what an experiment's augmentation makes of its images."""
    import torch

    from fedssl import assemble, nets
    from fedssl.data.progress import say_on_stderr
    from fedssl.experiment import load
    from fedssl.report.sheet import draw_sheet
    from fedssl.seeds import generator

    _writable(out, ".png")
    experiment = load(name, set)
    images = assemble.read_data(experiment, data_dir, None, say_on_stderr).train.held
    with nets.unfilled():
        method = experiment.method.method(
            experiment.method, assemble.build_backbone(experiment, images.image[0]), images.image[-1]
        )
    if not method.views:
        raise FedsslError("this method trains on images as they are: there are no views to draw")
    some = torch.randperm(len(images), generator=generator(experiment.seed, "sheet"))[:8]
    draw_sheet(images[some], method.views[0], experiment.seed, out)
    print(f"wrote {out}")


@app.command()
def combinations(
    train: Annotated[bool, typer.Option("--train", help="Also train each for two rounds, on tiny images.")] = False,
) -> None:
    """Say which algorithm goes with which method and topology, as Markdown, and why others do not."""
    from fedssl.combinations import attempts, images, tables

    found = dict(attempts(images() if train else None))
    print(tables(found))
    if any(outcome.failed for outcome in found.values()):
        raise typer.Exit(1)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what is installed, what each extra needs and what the devices are."""
    from fedssl.doctor import examine, show

    found = examine()
    print(json.dumps(found)) if as_json else show(found)


def _writable(path: Path | None, suffix: str = "") -> None:
    """Refuse a place to write to before any image is read."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise ConfigError(
            f"{path} cannot be written: {'it is a folder' if path.is_dir() else 'there is no such folder'}"
        )
    if path is not None and suffix and path.suffix.lower() != suffix:
        raise ConfigError(f"{path} cannot be written: the name must end in {suffix}")


_asked = -math.inf  # when somebody last asked for the end


def _terminate(number: int, frame: FrameType | None) -> None:
    """Ctrl-C or a termination signal. A second one, from an impatient hand, must not cut short what the first began;
    one much later is heard again, should the first have been lost in a library."""
    global _asked
    if time.monotonic() - _asked > PATIENCE:
        _asked = time.monotonic()
        raise KeyboardInterrupt


def main() -> None:
    """The console script: errors meant for a user are one line and an exit code, never a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _terminate)
    try:
        app()
    except FedsslError as problem:
        print(f"fedssl: {problem}", file=sys.stderr)
        if isinstance(problem, DataError) and problem.detail and sys.stderr.isatty():
            print(f"  {problem.detail}", file=sys.stderr)
        sys.exit(problem.exit_code)
    except OSError as problem:
        print(f"fedssl: {problem}", file=sys.stderr)
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != STOPPED:
            raise
        print("fedssl: stopped", file=sys.stderr)  # a KeyboardInterrupt, as it is or as typer passes it on
        sys.exit(STOPPED)
    finally:  # nothing is left to be cut short, and the exit code must be ours
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
