"""The server's half of an app; the clients' half is in clientapp.py."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedssl.core.console import names_hidden, print_to_stderr
from fedssl.experiment.experiment import Experiment
from fedssl.flower.app_experiment import read_experiment
from fedssl.flower.serve import serve
from fedssl.flower.server_settings import ServerSettings
from fedssl.flower.telemetry import describe_telemetry

POLL = 0.5  # seconds between checks that the parent process exists


def server_app(experiment: Experiment | str | Path, imports: Sequence[str] = ()) -> ServerApp:
    """Return a ServerApp for an experiment or its TOML file.

    `imports` are modules to import first: dotted names, or files in the folder of the TOML file.
    """
    chosen = read_experiment(experiment, imports)
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        exit_with_parent(os.getppid())
        print_to_stderr(describe_telemetry(os.environ))
        with names_hidden():
            serve(chosen, grid, ServerSettings.read(context.run_config))

    app.main()(main)
    return app


def exit_with_parent(parent: int) -> None:
    """Start a thread that ends this process when its parent has ended.

    If the SuperLink is killed, this process would keep polling it and hold the lock of the run
    directory, so that the run could not be resumed. Flower interrupts this process, but the round
    loop then waits for the end of the round, which never comes. A run that is ended at any moment
    resumes after its last checkpoint.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL)
        print_to_stderr(
            "the parent process has ended, so this one ends too; the run can be resumed"
        )
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="exit with parent").start()
