"""The server's half of an app. The clients' is in client.py, which a node can import without the server's."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedssl.data.progress import say_on_stderr
from fedssl.experiment import Experiment
from fedssl.runtimes.flower.serve import ServerSettings, serve
from fedssl.runtimes.flower.switches import chatter

LOOK = 0.5  # seconds between looks at whether the parent is there


def server_app(experiment: Experiment | str | Path) -> ServerApp:
    """A ServerApp for an experiment, or for the TOML file that has it."""
    chosen = experiment if isinstance(experiment, Experiment) else Experiment.from_file(Path(experiment))
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        end_with(os.getppid())
        say_on_stderr(chatter(os.environ))
        serve(chosen, grid, ServerSettings.read(context.run_config))

    app.main()(main)
    return app


def end_with(parent: int) -> None:
    """End this process when its parent has ended.

    If the SuperLink is killed, this process would go on asking for it, and hold the run directory's lock: nobody could
    go on with the run. Flower interrupts it, which the round loop takes for a wish to stop after the round, and that
    never ends. Ended at any moment, a run goes on after its last checkpoint.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        say_on_stderr("the process that started this one has ended; so does this one, and the run can be gone on with")
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end with the parent").start()
