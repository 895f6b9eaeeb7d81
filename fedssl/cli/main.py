"""The program `fedssl`: all commands, signals and exit codes."""

from __future__ import annotations

import signal
import sys
import textwrap
from typing import Annotated, NoReturn

import typer

from fedssl.cli.command_help import (
    CHECK,
    EXAMPLES,
    EXTEND,
    PAPERS,
    PROGRAM_EXAMPLES,
    RUNS,
    START,
    as_epilog,
)
from fedssl.cli.commands.analyse import analyse
from fedssl.cli.commands.audit import audit
from fedssl.cli.commands.classify import classify
from fedssl.cli.commands.combinations import combinations
from fedssl.cli.commands.compare import compare
from fedssl.cli.commands.doctor import doctor
from fedssl.cli.commands.embed import embed
from fedssl.cli.commands.evaluate import evaluate
from fedssl.cli.commands.export import export
from fedssl.cli.commands.finetune import finetune
from fedssl.cli.commands.flower import flower
from fedssl.cli.commands.new import new
from fedssl.cli.commands.partition import partition
from fedssl.cli.commands.purge import purge
from fedssl.cli.commands.recipes import recipes
from fedssl.cli.commands.report import report
from fedssl.cli.commands.run import run
from fedssl.cli.commands.runs import runs
from fedssl.cli.commands.search import search
from fedssl.cli.commands.tables import reproduce, sweep
from fedssl.cli.commands.views import views
from fedssl.cli.commands.watch import watch
from fedssl.core.ascii_output import replace_unencodable_output
from fedssl.core.console import names_are_shown
from fedssl.core.errors import DataError, FedsslError, is_out_of_memory, out_of_memory
from fedssl.core.signals import Interrupt, ignore_signal
from fedssl.core.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Pre-train vision backbones on unlabelled images that never leave their owners.",
    epilog=as_epilog(PROGRAM_EXAMPLES),
)

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130  # exit code after Ctrl-C


def _print_version(requested: bool) -> None:
    if requested:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


COMMANDS = {
    START: (new, recipes, run, doctor),
    CHECK: (partition, views, combinations),
    RUNS: (watch, runs, compare, report, evaluate, analyse, audit, purge),
    PAPERS: (reproduce, sweep),
    EXTEND: (export, embed, search, classify),
}
for panel, functions in COMMANDS.items():
    for function in functions:
        epilog = as_epilog(EXAMPLES[function.__name__])
        app.command(rich_help_panel=panel, epilog=epilog)(function)
app.add_typer(finetune, name="finetune", rich_help_panel=EXTEND)
app.add_typer(flower, name="flower", rich_help_panel=EXTEND)


def main() -> None:
    """Run the program: errors meant for a user are one line and an exit code, not a traceback."""
    interrupt = Interrupt()
    for number in SIGNALS:
        signal.signal(number, interrupt)
    replace_unencodable_output()
    try:
        app()
    except FedsslError as problem:
        _fail(problem)
    except (MemoryError, RuntimeError, OSError) as problem:
        if is_out_of_memory(problem):
            _fail(out_of_memory(problem))
        if not isinstance(problem, OSError):
            raise
        print(f"fedssl: {problem}", file=sys.stderr)
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as end:
        # Typer turns a KeyboardInterrupt into SystemExit(130).
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        print("fedssl: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        # The work is done: a late signal must not change the exit code.
        for number in SIGNALS:
            ignore_signal(number)


def _fail(problem: FedsslError) -> NoReturn:
    print(f"fedssl: {problem}", file=sys.stderr)
    if isinstance(problem, DataError) and problem.detail and names_are_shown():
        print(textwrap.indent(problem.detail, "  "), file=sys.stderr)
    sys.exit(problem.exit_code)


if __name__ == "__main__":
    main()
