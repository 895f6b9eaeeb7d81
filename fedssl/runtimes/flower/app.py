"""The server's half of an app. The clients' is in client.py, which a node can import without the server's."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedssl.experiment import Experiment
from fedssl.runtimes.flower.serve import ServerSettings, serve


def server_app(experiment: Experiment | str | Path) -> ServerApp:
    """A ServerApp for an experiment, or for the TOML file that has it."""
    chosen = experiment if isinstance(experiment, Experiment) else Experiment.from_file(Path(experiment))
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        serve(chosen, grid, ServerSettings.read(context.run_config))

    app.main()(main)
    return app
