"""A federation of real processes on loopback, for the slow tests."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_grid import Nodes

from fedssl.core.files.sealed import unseal
from fedssl.experiment.experiment import Experiment
from fedssl.flower.app_template import write_app
from fedssl.flower.local_federation import start_federation
from fedssl.flower.local_processes import CONNECTION, Processes
from fedssl.runs.rounds_log import read_rounds


def finished_rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's rounds log."""
    return list(read_rounds(folder / "rounds.jsonl"))


def wait_until(condition: Callable[[], object], seconds: float, description: str) -> None:
    """Wait for a condition, and fail if it does not hold in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {description}"
        time.sleep(0.1)


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill this process alone: its children must notice that it is gone."""
    process.kill()
    process.wait()


class RealFederation:
    """A SuperLink and two SuperNodes that a test can start and stop one by one."""

    def __init__(
        self, nodes: Nodes, processes: Processes, experiment: Experiment, **settings: Any
    ) -> None:
        self.root = nodes.root
        self.processes = processes
        self.run = nodes.root / "flower-run"
        self.app = processes.folder / "app"
        self.address = ""
        shared = {
            "data-dir": str(nodes.root / "data"),
            "memory-dir": str(nodes.root / "memory"),
            "images": "dealt",
            "device": "cpu",
        }
        self.configs = [{"client-id": client, **shared} for client in ("0", "1")]
        config = {"run-dir": str(self.run), "device": "cpu", "join-timeout": 120.0}
        config |= {key.replace("_", "-"): value for key, value in settings.items()}
        write_app(self.app, "tiny", experiment, config)

    def begin(self) -> None:
        """Start the SuperLink and the SuperNodes."""
        self.address = start_federation(self.processes, self.configs, lambda line: None)

    def submit(self) -> subprocess.Popen[bytes]:
        """Submit the app."""
        return self.processes.start("run", "flwr", "run", str(self.app), CONNECTION, "--stream")

    def has_begun(self, client: str, round: int) -> bool:
        """True if a client has begun a round."""
        for path in (self.root / "memory" / client).glob("*/claim.json"):
            if unseal(path.read_bytes())["round"] >= round:
                return True
        return False

    def logs(self) -> str:
        """Return the end of every log, for the message of a failed assertion."""
        paths = (self.processes.folder / "logs").iterdir()
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in paths)
