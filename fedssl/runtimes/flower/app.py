"""The server's half of an app. The clients' is in client.py, which a node can import without the server's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedssl.data.progress import say_on_stderr
from fedssl.experiment import Experiment
from fedssl.runtimes.flower.serve import ServerSettings, serve

SWITCHES = {  # of Flower's that talk to others, and how each is turned off
    "telemetry": ("FLWR_TELEMETRY_ENABLED", "0"),
    "update check": ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    "installation of packages at run time": ("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1"),
}


def chatter(environment: Mapping[str, str]) -> str:
    """What Flower may tell others from this process, and how to turn it off."""
    on = {name: f"{key}={off}" for name, (key, off) in SWITCHES.items() if environment.get(key) != off}
    if not on:
        return f"Flower's {', '.join(SWITCHES)} are off"
    return f"Flower's {', '.join(on)} may be on: {' '.join(on.values())} in its environment turns them off"


def server_app(experiment: Experiment | str | Path) -> ServerApp:
    """A ServerApp for an experiment, or for the TOML file that has it."""
    chosen = experiment if isinstance(experiment, Experiment) else Experiment.from_file(Path(experiment))
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        say_on_stderr(chatter(os.environ))
        serve(chosen, grid, ServerSettings.read(context.run_config))

    app.main()(main)
    return app
