"""`fedssl flower up`: a whole federation on this machine, from keys to the final table, and nothing left running."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from fedssl import assemble
from fedssl.agree import agree
from fedssl.data.progress import Say, say_nothing, say_on_stderr
from fedssl.errors import ConfigError, RunError
from fedssl.experiment import Experiment
from fedssl.finish import finish
from fedssl.lock import locked, make_private
from fedssl.loop import Interrupted, warn
from fedssl.report.progress import telling
from fedssl.report.rounds import read_rounds
from fedssl.runtimes.flower.kin import end_all_of
from fedssl.runtimes.flower.logs import complaints, following, joining
from fedssl.runtimes.flower.processes import CONNECTION, Processes, processes
from fedssl.runtimes.flower.template import write_app
from fedssl.store import Store

Config = Mapping[str, str | int]  # of a node, or of the app

LOOK = 0.5  # seconds between looks at the rounds log
NOTES = (
    "telemetry, update check and installation of packages at run time are off; TLS and node authentication are on",
    "other users of this machine can reach the SuperLink and disturb the run; no code but this app's is run for them",
)
RAISED = re.compile(r"fedssl\.errors\.\w+: (.*)")


def up(
    experiment: Experiment,
    folder: Path,
    data_dir: Path,
    title: str,
    device: str,
    quiet: bool,
    nodes: int | None = None,
) -> None:
    """Run an experiment on a SuperLink and SuperNodes here, and measure what came of it.

    One SuperNode for each client, or as many as `nodes`, among which the clients are dealt in turn: that changes where
    a client trains, and not what comes of it. In the run directory: `nodes`, what each client remembers; `flower`,
    keys, logs and the app.
    """
    say: Say = say_nothing if quiet else say_on_stderr
    folder, data_dir = folder.resolve(), data_dir.resolve()
    agree(experiment, folder, assemble.resolve_device(device), say_nothing)  # before images are read
    data = assemble.read_data(experiment, data_dir, None, say)
    public = assemble.read_public(experiment, data, data_dir, say)
    _, owners = assemble.deal(experiment, data, say)
    count = len(owners) if nodes is None else nodes
    if count > len(owners):
        raise ConfigError(f"the experiment has {len(owners)} clients, too few for {count} SuperNodes")
    if not _trained(folder, experiment):
        config: Config = {"run-dir": str(folder), "data-dir": str(data_dir), "device": device, "clients": len(owners)}
        place: Config = {
            "data-dir": str(data_dir),
            "memory-dir": str(folder / "nodes"),
            "images": "dealt",
            "device": device,
        }
        configs: list[Config] = [{"partition-id": i, "num-partitions": count, **place} for i in range(count)]
        make_private(folder)
        (folder / "flower").mkdir(exist_ok=True)
        warn(experiment, say_on_stderr)  # the ServerApp's own warning goes to its log
        with locked(folder / "flower"):  # the run directory's own lock is the ServerApp's
            _train(experiment, folder, title, config, configs, quiet, say)
    finish(folder, data, public, assemble.resolve_device(device), quiet)


def _trained(folder: Path, experiment: Experiment) -> bool:
    """Whether nothing is left to do for a federation."""
    if experiment.algorithm.personalises or not (folder / "results.json").is_file():
        return False  # clients may not have the models of their own yet
    snapshot = Store(folder).load(say_nothing, check_rows=False)
    return snapshot is not None and snapshot.rounds >= experiment.rounds


def _train(
    experiment: Experiment,
    folder: Path,
    title: str,
    config: Config,
    nodes: list[Config],
    quiet: bool,
    say: Say,
) -> None:
    place = folder / "flower"
    end_all_of(place / "home")  # what a killed `up` has left
    for old in place.iterdir():  # keys are made anew each time
        if old.is_dir():
            shutil.rmtree(old)
        elif old.name != "run.lock":
            old.unlink()
    try:
        with processes(place) as started:
            write_app(place / "app", title, experiment, config)
            started.only(place / "app")
            for note in NOTES:
                say(note)
            gather(started, nodes, say)
            job = started.start("run", "flwr", "run", str(place / "app"), CONNECTION, "--stream")
            watch(job, started, folder, experiment, title, quiet, say)
    except KeyboardInterrupt:
        done = sum(1 for _ in read_rounds(folder / "rounds.jsonl"))
        raise Interrupted(f"stopped after round {done} of {experiment.rounds}; the same command goes on") from None


def gather(started: Processes, nodes: list[Config], say: Say) -> str:
    """A SuperLink, and a SuperNode with a registered key for each of `nodes`; the SuperLink's address."""
    address = started.superlink()
    say(f"a SuperLink is up at {address}; {len(nodes)} SuperNodes follow")
    for number, config in enumerate(nodes):
        started.supernode(f"node{number}", address, started.register(f"node{number}"), config)
    return address


def watch(
    job: subprocess.Popen[bytes],
    started: Processes,
    folder: Path,
    experiment: Experiment,
    title: str,
    quiet: bool,
    say: Say,
) -> None:
    """Tell of nodes that join and of rounds as they are finished, until all are, the job is over, or a process is."""
    rounds = following(folder / "rounds.jsonl")
    done = sum(1 for _ in rounds())
    hear = joining(started.log("run"), say)
    nodes = [complaints(started.log(name), name, say) for name in started.running if name.startswith("node")]
    with telling(title, experiment.rounds, done, experiment.clients or 1, quiet) as progress:
        told = done
        while True:
            over = job.poll() is not None
            hear()
            for complain in nodes:
                complain()
            for line in map(json.loads, rounds()):
                if line["round"] > told:
                    progress.round(line)
                    told = line["round"]
            if over:
                break
            if (name := started.fallen()) and job.poll() is None:
                raise RunError(f"{name} has ended, and the run with it. {_trouble(started, name)}")
            time.sleep(LOOK)
    if not _done(folder, experiment.rounds):
        raise RunError(f"the run on Flower did not end well; the same command goes on. {_trouble(started, 'run')}")


def _done(folder: Path, rounds: int) -> bool:
    return (folder / "results.json").is_file() and sum(1 for _ in read_rounds(folder / "rounds.jsonl")) >= rounds


def _trouble(started: Processes, name: str) -> str:
    """Why, in fedssl's own words if it has said any, else in a process's last ones."""
    raised = RAISED.findall(started.log(name).read_text("utf-8", "replace"))
    logs = f"All that was said is in {started.folder / 'logs'}"
    return f"{raised[-1]}\n{logs}" if raised else f"{logs}; last:\n{started.last_words(name)}"
