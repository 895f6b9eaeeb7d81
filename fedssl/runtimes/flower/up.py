"""`fedssl flower up`: a whole federation on this machine, from keys to the final table, and nothing left running."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedssl import assemble
from fedssl.agree import agree
from fedssl.data.progress import Say, say_on_stderr
from fedssl.errors import RunError
from fedssl.experiment import Experiment
from fedssl.finish import finish
from fedssl.loop import Interrupted
from fedssl.report.progress import telling
from fedssl.report.rounds import read_rounds
from fedssl.runtimes.flower.processes import CONNECTION, Processes, processes
from fedssl.runtimes.flower.template import write_app

LOOK = 0.5  # seconds between looks at the rounds log
NOTE = "telemetry, update check and installation of packages at run time are off; TLS and node authentication are on"


def up(experiment: Experiment, folder: Path, data_dir: Path, title: str, device: str, quiet: bool) -> None:
    """Run an experiment on a SuperLink and one SuperNode for each client, here, and measure what came of it.

    In the run directory: `nodes`, what each client remembers; `flower`, keys, logs and the app.
    """
    say: Say = (lambda line: None) if quiet else say_on_stderr
    folder, data_dir = folder.resolve(), data_dir.resolve()
    agree(experiment, folder, assemble.resolve_device(device), lambda line: None)  # before images are read
    data = assemble.read_data(experiment, data_dir, None, say)
    public = assemble.read_public(experiment, data, data_dir, say)
    _, owners = assemble.deal(experiment, data, say)
    say(NOTE)
    config = {
        "run-dir": str(folder),
        "data-dir": str(data_dir),
        "device": device,
        "clients": len(owners),
    }
    nodes: dict[str, Mapping[str, str]] = {
        client: {
            "client-id": client,
            "data-dir": str(data_dir),
            "memory-dir": str(folder / "nodes"),
            "images": "dealt",
            "device": device,
        }
        for client in owners
    }
    place = folder / "flower"
    shutil.rmtree(place, ignore_errors=True)  # keys are made anew each time
    try:
        with processes(place) as started:
            write_app(place / "app", title, experiment, config)
            gather(started, nodes, say)
            job = started.start("run", "flwr", "run", str(place / "app"), CONNECTION, "--stream")
            watch(job, folder, experiment, title, quiet, lambda: _trouble(started))
    except KeyboardInterrupt:
        done = sum(1 for _ in read_rounds(folder / "rounds.jsonl"))
        raise Interrupted(f"stopped after round {done} of {experiment.rounds}; the same command goes on") from None
    finish(folder, data, public, assemble.resolve_device(device), quiet)


def gather(started: Processes, nodes: Mapping[str, Mapping[str, str]], say: Say, *more: str) -> str:
    """A SuperLink, and a SuperNode with a registered key for each of `nodes`; the SuperLink's address."""
    address = started.superlink(*more)
    say(f"a SuperLink is up at {address}; {len(nodes)} SuperNodes follow")
    for number, config in enumerate(nodes.values()):
        started.supernode(f"node{number}", address, started.register(f"node{number}"), config)
    return address


def watch(
    job: subprocess.Popen[bytes],
    folder: Path,
    experiment: Experiment,
    title: str,
    quiet: bool,
    trouble: Callable[[], str],
) -> None:
    """Tell of rounds as they are finished, until all are, or the job is over."""
    log, told = folder / "rounds.jsonl", 0
    done = sum(1 for _ in read_rounds(log))
    per_round = experiment.clients or 1
    with telling(title, experiment.rounds, done, per_round, quiet) as progress:
        while True:
            over = job.poll() is not None
            lines: list[dict[str, Any]] = list(read_rounds(log))
            for line in lines[max(done, told) :]:
                progress.round(line)
                told = line["round"]
            if over:
                break
            time.sleep(LOOK)
    if not (folder / "results.json").is_file() or sum(1 for _ in read_rounds(log)) < experiment.rounds:
        raise RunError(f"the run on Flower did not end well; the same command goes on. {trouble()}")


def _trouble(started: Processes) -> str:
    return f"Its last words, all of which are in {started.folder / 'logs'}:\n{started.last_words('run')}"
