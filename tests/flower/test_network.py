"""Over the real path: a SuperLink and SuperNodes on loopback, with TLS and node authentication."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_grid import Nodes, tiny

import fedssl
from benchmarks.flower import measure
from fedssl.experiment import Experiment
from fedssl.report.rounds import read_rounds
from fedssl.runtimes.flower.keys import make_certificates, make_node_key
from fedssl.runtimes.flower.processes import CONNECTION, Processes, descendants, processes
from fedssl.runtimes.flower.template import write_app
from fedssl.runtimes.flower.up import gather, up
from fedssl.store import Store
from fedssl.tree import dumps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _bits(folder: Path) -> dict[str, bytes]:
    snapshot = Store(folder).load(lambda line: None)
    assert snapshot is not None
    return {site: dumps(tree) for site, tree in snapshot.sites.items()}


def _rounds(folder: Path) -> list[dict[str, Any]]:
    return list(read_rounds(folder / "rounds.jsonl"))


def _until(true: Any, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def _alive(root: Path) -> list[int]:
    """Processes of a federation that lives in a folder: all have its FLWR_HOME in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"FLWR_HOME={root}".encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


class Field:
    """Two SuperNodes and a SuperLink, one by one in reach of a test."""

    def __init__(self, nodes: Nodes, started: Processes, experiment: Experiment, **settings: Any) -> None:
        self.root, self.started, self.run = nodes.root, started, nodes.root / "flower-run"
        data, memory = str(nodes.root / "data"), str(nodes.root / "memory")
        self.configs = [
            {"client-id": str(i), "data-dir": data, "memory-dir": memory, "images": "dealt", "device": "cpu"}
            for i in range(2)
        ]
        config = {"run-dir": str(self.run), "device": "cpu", "join-timeout": 120.0}
        config |= {key.replace("_", "-"): value for key, value in settings.items()}
        write_app(started.folder / "app", "tiny", experiment, config)

    def begin(self) -> None:
        self.address = gather(self.started, self.configs, lambda line: None)

    def submit(self) -> subprocess.Popen[bytes]:
        return self.started.start("run", "flwr", "run", str(self.started.folder / "app"), CONNECTION, "--stream")

    def remembered(self, client: str, round: int) -> bool:
        return bool(list((self.root / "memory" / client).glob(f"*/{round:05d}.*.remembered")))

    def claimed(self, client: str, round: int) -> bool:
        """Whether a client has begun a round."""
        for path in (self.root / "memory" / client).glob("*/claim.json"):
            if json.loads(path.read_text())["round"] >= round:
                return True
        return False

    def logs(self) -> str:
        return "\n".join(f"== {p.name}\n{p.read_text()[-3000:]}" for p in (self.started.folder / "logs").iterdir())


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Processes]:
    with processes(tmp_path / "flower") as running:
        yield running


def _kill(process: subprocess.Popen[bytes], with_children: bool = True) -> None:
    for pid in [*(descendants(process.pid) if with_children else []), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(("algorithm", "method"), [("fedavg", "simclr"), ("fedema", "byol")])
def test_the_bits_of_a_local_run_and_nothing_left_behind(algorithm: str, method: str, nodes: Nodes) -> None:
    experiment = tiny(algorithm, method, clients=2)
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    up(experiment, nodes.root / "run", nodes.root / "data", "tiny", "cpu", quiet=True)
    assert not _alive(nodes.root)
    assert _bits(nodes.root / "run") == _bits(local.dir)
    assert fedssl.Run(nodes.root / "run").results["table"] == local.results["table"]


@pytest.mark.parametrize(("algorithm", "method"), [("fedu", "byol"), ("featarc", "simclr")])
def test_flowers_simulation_gives_these_bits_too(
    algorithm: str, method: str, nodes: Nodes, started: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    experiment = tiny(algorithm, method, clients=2)
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(nodes.root / "state"))
    config = {"run-dir": str(nodes.root / "run"), "data-dir": str(nodes.root / "data"), "device": "cpu"}
    write_app(started.folder / "app", "tiny", experiment, config)
    size = "num-supernodes=2 client-resources-num-cpus=1"
    try:
        started.call(
            "run", "flwr", "run", str(started.folder / "app"), "--stream", "--federation-config", size, timeout=200
        )
        assert _bits(nodes.root / "run") == _bits(local.dir), started.last_words("run")
    finally:
        for pid in _alive(nodes.root):  # Flower leaves a SuperLink behind
            os.kill(pid, signal.SIGKILL)


def test_who_is_not_known_is_not_let_in(nodes: Nodes, started: Processes) -> None:
    """A key that nobody registered, a SuperLink that another authority vouches for, and no TLS at all."""
    address = started.superlink()
    make_node_key(started.folder / "keys" / "stranger")
    good = started.register("good")
    make_certificates(started.folder / "others")
    config = {"client-id": "0", "data-dir": str(nodes.root / "data")}
    started.supernode("stranger", address, started.folder / "keys" / "stranger", config)
    ours, started.ca = started.ca, started.folder / "others" / "ca.crt"
    started.supernode("fooled", address, good, config)
    started.ca = ours
    started.start("plain", "flower-supernode", "--insecure", "--superlink", address, "--port", "0")
    time.sleep(25)
    started.call("list", "flwr", "supernode", "list", CONNECTION, "--format", "json")
    listed = json.loads(started.log("list").read_text())["nodes"]
    assert [node["status"] for node in listed] == ["registered"]  # the good one, which never came
    assert "CERTIFICATE_VERIFY_FAILED" in started.log("fooled").read_text()
    started.supernode("good", address, good, config)
    _until(lambda: _online(started) == ["online"], 60, "the good node is let in")


def _online(started: Processes) -> list[str]:
    started.log("list").unlink()
    started.call("list", "flwr", "supernode", "list", CONNECTION, "--format", "json")
    return [node["status"] for node in json.loads(started.log("list").read_text())["nodes"]]


SLOW = {"train.epochs": 400, "rounds": 4, "clients": 2}  # a round of several seconds, long enough to be hit in it


def test_a_killed_supernode_comes_back_with_its_memory(nodes: Nodes, started: Processes) -> None:
    """The round it is killed in closes with the other client; it is back in a later one, and remembers."""
    experiment = tiny("fedema", "byol", **{**SLOW, "rounds": 10})
    field = Field(nodes, started, experiment, round_timeout=40.0)
    field.begin()
    job = field.submit()
    _until(lambda: field.claimed("1", 2), 240, "client 1 is in its third round")
    _kill(started.running.pop("node1"))
    killed = time.monotonic()
    _until(lambda: len(_rounds(field.run)) >= 3, 120, "the round closes")
    print(f"the round closed {time.monotonic() - killed:.1f} s after the kill")
    while job.poll() is None:  # as systemd would: Flower lets a node in again when it has missed two heartbeats
        if "node1" not in started.running or started.running["node1"].poll() is not None:
            started.end("node1")
            started.supernode("node1", field.address, started.folder / "keys" / "node1", field.configs[1])
        time.sleep(5)
    lines = _rounds(field.run)
    dropped = [[client["dropped"] for client in line["clients"]] for line in lines]
    print(f"rounds without client 1: {sum(reasons[1] is not None for reasons in dropped)}")
    assert len(lines) == 10, field.logs()
    assert dropped[:2] == [[None, None]] * 2
    assert dropped[2][0] is None
    assert dropped[2][1] is not None
    assert dropped[8:] == [[None, None]] * 2, dropped
    # λ is found once, when a client trains in two rounds in a row, and kept: it was before the kill.
    assert lines[9]["clients"][1]["notes"]["lam"] == lines[1]["clients"][1]["notes"]["lam"]


def test_ctrl_c_leaves_nothing_running_and_the_same_command_goes_on(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", **SLOW)
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    (nodes.root / "tiny.toml").write_text(experiment.to_toml())
    command = [sys.executable, "-m", "fedssl.cli", "flower", "up", "tiny.toml", "--dir", "run", "--device", "cpu"]
    process = subprocess.Popen(command, cwd=nodes.root, stderr=subprocess.PIPE, text=True, start_new_session=True)
    _until(lambda: _rounds(nodes.root / "run"), 200, "a first round")
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - asked < 15
    assert process.returncode == 130
    assert "; the same command goes on" in said.splitlines()[-1]
    assert not _alive(nodes.root)
    subprocess.run(command, cwd=nodes.root, check=True, capture_output=True, timeout=300)
    assert _bits(nodes.root / "run") == _bits(local.dir)


def test_a_killed_superlink_is_gone_on_from(nodes: Nodes, started: Processes) -> None:
    """Started anew, the run submitted again: it goes on where it was, to the bits of a run nobody disturbed."""
    experiment = tiny("fedema", "byol", **SLOW)
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    field = Field(nodes, started, experiment)
    field.begin()
    field.submit()
    _until(lambda: field.claimed("1", 2), 240, "client 1 is in its third round")
    _kill(started.running.pop("superlink"))
    started.end("run", "node0", "node1")
    field.begin()
    job = field.submit()
    _until(lambda: job.poll() is not None, 500, "the run ends")
    roll = json.loads((field.run / "flower.json").read_text())
    assert roll["starts"][0] == 0
    assert roll["starts"][-1] in (1, 2), field.logs()
    assert _bits(field.run) == _bits(local.dir)


def test_an_upload_of_250_mb_passes() -> None:
    found = measure(250, rounds=1)
    print(found)
    assert found["upload_mb"] > 245
    assert found["dropped"] == []
