"""`fedssl flower up`: run a whole federation on this machine, and leave no process running."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedssl.core.console import Notify, ignore_message, print_to_stderr
from fedssl.core.devices.select import resolve_device
from fedssl.core.errors import ConfigError, RunError
from fedssl.core.files import integrity
from fedssl.core.files.lock import locked, make_private
from fedssl.engine.checkpoints.store import Store
from fedssl.evaluation.probe_images import read_probe_images
from fedssl.experiment.client_data import partition_data, read_data, read_public
from fedssl.experiment.experiment import Experiment
from fedssl.flower.app_template import write_app
from fedssl.flower.local_processes import CONNECTION, Processes, local_processes
from fedssl.flower.logs import follow_complaints, follow_joining, follow_lines
from fedssl.flower.process_tree import kill_federation
from fedssl.runs.finalize import finish
from fedssl.runs.progress import round_progress
from fedssl.runs.resume_checks import check_resumable, raise_if_baseline_purged
from fedssl.runs.rounds_log import read_rounds
from fedssl.runs.session import Interrupted
from fedssl.runs.start_warnings import warn
from fedssl.runs.time_left import TRAINING_ONLY, Pace

Config = Mapping[str, str | int]  # of a node, or of the app

POLL = 0.5  # seconds between reads of the logs
NOTES = (
    "telemetry, update check and installation of packages at run time are off; "
    "TLS and node authentication are on",
    "other users of this machine can reach the SuperLink and disturb the run; "
    "they cannot run code other than this app",
)
RAISED = re.compile(r"\bfedssl(?:\.\w+)*\.[A-Z]\w*: (.*)")  # the last line of a traceback


@dataclass(frozen=True)
class LoopbackRun:
    """A run of an experiment on a federation on this machine."""

    experiment: Experiment
    folder: Path
    title: str
    quiet: bool
    notify: Notify

    @property
    def flower_folder(self) -> Path:
        """The folder of keys, logs and the app."""
        return self.folder / "flower"

    def finished_rounds(self) -> int:
        """Return the number of rounds in the rounds log."""
        return sum(1 for _ in read_rounds(self.folder / "rounds.jsonl"))

    def is_complete(self) -> bool:
        """True if all rounds are finished and the server has written its results."""
        if not (self.folder / "results.json").is_file():
            return False
        return self._budget_spent() or self.finished_rounds() >= self.experiment.rounds

    def _budget_spent(self) -> bool:
        """True if training ended early because its privacy budget was spent."""
        try:
            results = integrity.read_json(self.folder, "results.json") or {}
        except ValueError:  # damaged: the run is measured again
            return False
        return bool(results.get("privacy", {}).get("budget_spent", False))

    def needs_federation(self) -> bool:
        """True unless the run directory has everything that a federation produces."""
        if self.experiment.algorithm.personalises:
            return True  # clients may not have made their own models yet
        if not (self.folder / "results.json").is_file():
            return True
        if self._budget_spent():
            return False
        snapshot = Store(self.folder).load(ignore_message, check_rows=False)
        return snapshot is None or snapshot.rounds < self.experiment.rounds


def run_local_federation(
    experiment: Experiment,
    folder: Path,
    data_dir: Path,
    *,
    title: str,
    device: str,
    quiet: bool,
    nodes: int | None = None,
    secure_aggregation: bool = False,
) -> None:
    """Run an experiment on a SuperLink and SuperNodes on this machine, and evaluate the result.

    There is one SuperNode per client, or `nodes` of them, to which the clients are assigned in
    turn: that changes where a client trains, but not the result. The run directory has `nodes`, the
    state of each client, and `flower`, keys, logs and the app.
    """
    notify: Notify = ignore_message if quiet else print_to_stderr
    folder = folder.resolve()
    data_dir = data_dir.resolve()
    # Before images are read.
    check_resumable(experiment, folder, resolve_device(device), ignore_message)
    data = read_data(experiment, data_dir, None, notify)
    public = read_public(experiment, data, data_dir, notify)
    other = read_probe_images(experiment, data.train.image_shape, data_dir, notify)
    clients = len(partition_data(experiment, data, notify)[1])
    if nodes is None:
        nodes = clients
    if nodes > clients:
        raise ConfigError(f"the experiment has {clients} clients, too few for {nodes} SuperNodes")
    run = LoopbackRun(experiment, folder, title, quiet=quiet, notify=notify)
    if run.needs_federation():
        app_config = _app_config(folder, data_dir, device, clients, secure_aggregation)
        node_configs = _node_configs(folder, data_dir, device, nodes=nodes)
        make_private(folder)
        run.flower_folder.mkdir(exist_ok=True)
        warn(experiment, print_to_stderr)  # the ServerApp writes its warning to its log
        with locked(run.flower_folder):  # the ServerApp locks the run directory
            _train(run, app_config, node_configs)
    finish(folder, data, public, resolve_device(device), quiet, other=other)


def _app_config(folder: Path, data_dir: Path, device: str, clients: int, secure: bool) -> Config:
    return {
        "run-dir": str(folder),
        "data-dir": str(data_dir),
        "device": device,
        "clients": clients,
        "secure-aggregation": secure,
    }


def _node_configs(folder: Path, data_dir: Path, device: str, nodes: int) -> list[Config]:
    shared: Config = {
        "data-dir": str(data_dir),
        "memory-dir": str(folder / "nodes"),
        "images": "dealt",
        "device": device,
    }
    return [{"partition-id": i, "num-partitions": nodes, **shared} for i in range(nodes)]


def _train(run: LoopbackRun, app_config: Config, node_configs: list[Config]) -> None:
    """Start the federation, submit the app, and wait for the end of the run."""
    if run.finished_rounds() < run.experiment.rounds:
        raise_if_baseline_purged(run.experiment, run.folder)
    folder = run.flower_folder
    kill_federation(folder / "home")  # left over from a killed `fedssl flower up`
    _remove_old_files(folder)
    app = folder / "app"
    try:
        with local_processes(folder) as processes:
            write_app(app, run.title, run.experiment, app_config)
            processes.pin_app(app)
            for note in NOTES:
                run.notify(note)
            start_federation(processes, node_configs, run.notify)
            job = processes.start("run", "flwr", "run", str(app), CONNECTION, "--stream")
            watch_run(job, processes, run)
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped after round {run.finished_rounds()} of {run.experiment.rounds}; "
            "run the same command again to resume"
        ) from None


def _remove_old_files(folder: Path) -> None:
    """Remove the files of an earlier start, except its lock; keys are made anew each time."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "run.lock":
            path.unlink()


def start_federation(processes: Processes, node_configs: list[Config], notify: Notify) -> str:
    """Start a SuperLink and a SuperNode per configuration; return the SuperLink's address."""
    address = processes.start_superlink()
    notify(f"the SuperLink runs at {address}; starting {len(node_configs)} SuperNodes")
    for number, config in enumerate(node_configs):
        name = f"node{number}"
        processes.start_supernode(name, address, processes.register(name), config)
    return address


def watch_run(job: subprocess.Popen[bytes], processes: Processes, run: LoopbackRun) -> None:
    """Print joining nodes and finished rounds until the job ends; raises RunError if it fails."""
    rounds = run.experiment.rounds
    new_rounds = follow_lines(run.folder / "rounds.jsonl")
    shown = sum(1 for _ in new_rounds())
    nodes = [name for name in processes.running if name.startswith("node")]
    printers = [
        follow_joining(processes.log("run"), run.notify),
        *(follow_complaints(processes.log(node), node, run.notify) for node in nodes),
    ]
    pace = Pace(rounds, shown, run.experiment.clients or 1, later=TRAINING_ONLY)
    with round_progress(run.title, pace, run.quiet) as progress:
        while True:
            ended = job.poll() is not None
            for print_new in printers:
                print_new()
            for line in map(json.loads, new_rounds()):
                if line["round"] > shown:
                    progress.round(line)
                    shown = line["round"]
            if ended:
                break
            exited = processes.first_exited()
            if exited is not None and job.poll() is None:
                raise RunError(f"{exited} exited during the run. {_cause(processes, exited)}")
            time.sleep(POLL)
    if not run.is_complete():
        raise RunError(
            "the run on Flower failed; run the same command again to resume. "
            f"{_cause(processes, 'run')}"
        )


def _cause(processes: Processes, name: str) -> str:
    """Return the last fedssl error in a process's log, or else the end of the log."""
    raised = RAISED.findall(processes.log(name).read_text("utf-8", "replace"))
    logs = processes.folder / "logs"
    if raised:
        return f"{raised[-1]}\nThe logs are in {logs}"
    return f"The logs are in {logs}; last lines:\n{processes.log_tail(name)}"
