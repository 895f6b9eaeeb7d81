"""A real federation resumes after its processes were killed, to the bits of an undisturbed run."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_grid import Nodes, site_bits, tiny
from real_federation import RealFederation, finished_rounds, kill, wait_until

import fedssl
from fedssl.flower.local_processes import Processes
from fedssl.flower.process_tree import federation_processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# A round of several seconds, long enough to be interrupted; one client is enough for it.
SLOW = {"train.epochs": 400, "rounds": 4, "clients": 2, "guard.min_uploads": 1}


def _restart_node1_until_the_job_ends(
    federation: RealFederation, job: subprocess.Popen[bytes]
) -> None:
    """As systemd would: Flower accepts a node again when it has missed two heartbeats."""
    processes = federation.processes
    key = processes.folder / "keys" / "node1"
    while job.poll() is None:
        node = processes.running.get("node1")
        if node is None or node.poll() is not None:
            processes.stop("node1")
            processes.start_supernode("node1", federation.address, key, federation.configs[1])
        time.sleep(5)


def test_a_killed_supernode_comes_back_with_its_memory(nodes: Nodes, processes: Processes) -> None:
    """The round it is killed in closes with the other client; it is back in a later one, with its
    state."""
    experiment = tiny("fedema", "byol", **{**SLOW, "rounds": 10})
    federation = RealFederation(nodes, processes, experiment, round_timeout=40.0)
    federation.begin()
    job = federation.submit()
    wait_until(lambda: federation.has_begun("1", 2), 240, "client 1 is in its third round")
    kill(processes.running.pop("node1"))  # its superexec and the process that trains stay alive
    killed = time.monotonic()
    wait_until(lambda: len(finished_rounds(federation.run)) >= 3, 120, "the round closes")
    print(f"the round closed {time.monotonic() - killed:.1f} s after the kill")
    _restart_node1_until_the_job_ends(federation, job)
    lines = finished_rounds(federation.run)
    dropped = [[client["dropped"] for client in line["clients"]] for line in lines]
    print(f"rounds without client 1: {sum(reasons[1] is not None for reasons in dropped)}")
    assert len(lines) == 10, federation.logs()
    assert dropped[:2] == [[None, None]] * 2
    assert dropped[2][0] is None
    assert dropped[2][1] is not None
    assert dropped[8:] == [[None, None]] * 2, dropped
    # λ is determined once, when a client trains in two rounds in a row (here before the kill), and
    # kept.
    assert lines[9]["clients"][1]["notes"]["lam"] == lines[1]["clients"][1]["notes"]["lam"]


class UpCommand:
    """`fedssl flower up` in a folder whose name contains both kinds of quotes."""

    def __init__(self, root: Path) -> None:
        self.run = root / 'it\'s "mine"'
        self.home = self.run / "flower/home"
        options = ["--dir", self.run.name, "--device", "cpu"]
        self._command = [sys.executable, "-m", "fedssl", "flower", "up", "tiny.toml", *options]
        self._options: dict[str, Any] = {"cwd": root, "text": True, "start_new_session": True}

    def start(self, stderr: int) -> subprocess.Popen[str]:
        """Start the command."""
        return subprocess.Popen(self._command, stderr=stderr, **self._options)

    def complete(self, timeout: float, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        return subprocess.run(
            self._command, check=check, capture_output=True, timeout=timeout, **self._options
        )


def test_up_leaves_nothing_running_and_the_same_command_resumes(nodes: Nodes) -> None:
    """After SIGKILL and after Ctrl-C, to the bits of an undisturbed run."""
    experiment = tiny("fedavg", "simclr", **SLOW)
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    (nodes.root / "tiny.toml").write_text(experiment.to_toml())
    up = UpCommand(nodes.root)
    _check_after_sigkill(up)
    _check_after_ctrl_c(up)
    up.complete(timeout=300)
    assert site_bits(up.run) == site_bits(local.dir)
    log = up.run / "flower/logs/run.log"
    written = log.stat().st_mtime_ns
    up.complete(timeout=100)
    assert log.stat().st_mtime_ns == written  # a finished run needs no federation


def _check_after_sigkill(up: UpCommand) -> None:
    """Kill the command after a round; a second one at the same time changes nothing."""
    first = up.start(stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: finished_rounds(up.run), 200, "a first round")
        second = up.complete(timeout=100, check=False)
        assert first.poll() is None
        assert federation_processes(up.home)
    finally:
        kill(first)
    assert second.returncode == 4
    assert f"flower is in use by process {first.pid}; nothing was changed" in second.stderr
    # Flower retries a few times to reach processes that are gone.
    wait_until(lambda: not federation_processes(up.home), 60, "no process is left")


def _check_after_ctrl_c(up: UpCommand) -> None:
    """Resume for another round, then interrupt the command."""
    done = len(finished_rounds(up.run))
    process = up.start(stderr=subprocess.PIPE)
    try:
        wait_until(lambda: len(finished_rounds(up.run)) > done, 200, "another round")
        process.send_signal(signal.SIGINT)
        interrupted = time.monotonic()
        _, output = process.communicate(timeout=60)
    finally:
        kill(process)
    assert time.monotonic() - interrupted < 15
    assert process.returncode == 130
    assert "; run the same command again to resume" in output.splitlines()[-1]
    assert "server: 0 of 2 clients" in output
    assert not federation_processes(up.home)


def test_a_run_resumes_after_its_superlink_was_killed(nodes: Nodes, processes: Processes) -> None:
    """The SuperLink is started anew and the run submitted again. Only the SuperLink is killed; its
    ServerApp, which holds the lock of the run directory, must end without help."""
    experiment = tiny("fedema", "byol", **SLOW)
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    federation = RealFederation(nodes, processes, experiment)
    federation.begin()
    federation.submit()
    wait_until(lambda: federation.has_begun("1", 2), 240, "client 1 is in its third round")
    processes.stop("run")
    kill(processes.running.pop("superlink"))
    wait_until(lambda: not _server_apps(processes), 20, "the ServerApp ends, too")
    processes.stop("node0", "node1")
    federation.begin()
    job = federation.submit()
    wait_until(lambda: job.poll() is not None, 500, "the run ends")
    starts = json.loads((federation.run / "flower.json").read_text())["starts"]
    assert starts[0] == 0
    assert starts[-1] in (1, 2), federation.logs()
    assert site_bits(federation.run) == site_bits(local.dir)


def _server_apps(processes: Processes) -> list[int]:
    """Return the ServerApp processes of a federation."""
    pids = []
    for process in federation_processes(processes.home):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "flwr-serverapp" in " ".join(process.cmdline()):
                pids.append(process.pid)
    return pids
