"""The real path: a SuperLink and SuperNodes on loopback, with TLS and node authentication."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w
from fake_grid import CASES, Nodes, site_bits, tiny
from fleet_proxy import fleet_only
from real_federation import RealFederation, finished_rounds, wait_until

import fedssl
from benchmarks.flower import measure
from fedssl.core.errors import RunError
from fedssl.experiment.experiment import Experiment
from fedssl.flower import app_pinning
from fedssl.flower.app_template import write_app
from fedssl.flower.certificates import make_certificate, make_node_key
from fedssl.flower.local_federation import run_local_federation
from fedssl.flower.local_processes import CONNECTION, Processes, free_port
from fedssl.flower.process_tree import federation_processes, kill_federation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GUIDE = Path(__file__).parents[2] / "docs/how-to/flower.md"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
PROXY_VARIABLES = (*PROXIES, *map(str.lower, PROXIES), "grpc_proxy")


def _run_here(experiment: Experiment, nodes: Nodes) -> None:
    run_local_federation(
        experiment,
        nodes.root / "run",
        nodes.root / "data",
        title="tiny",
        device="cpu",
        quiet=True,
    )


@pytest.mark.parametrize(("algorithm", "method"), [("fedavg", "simclr"), ("fedema", "byol")])
def test_the_bits_of_a_local_run_and_nothing_left_behind(
    algorithm: str, method: str, nodes: Nodes
) -> None:
    experiment = tiny(algorithm, method, clients=2)
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    _run_here(experiment, nodes)
    assert not federation_processes(nodes.root / "run/flower/home")
    assert site_bits(nodes.root / "run") == site_bits(local.dir)
    assert fedssl.Run(nodes.root / "run").results["table"] == local.results["table"]


def test_a_proxy_in_the_environment_stops_no_node(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens on port 9: with that proxy, nodes retry forever while the server waits."""
    for variable in PROXY_VARIABLES:
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    _run_here(tiny("fedavg", "simclr", clients=2, rounds=1), nodes)
    clients = finished_rounds(nodes.root / "run")[0]["clients"]
    assert [client["dropped"] for client in clients] == [None, None]


@pytest.mark.parametrize("name", CASES)
def test_flowers_simulation_gives_these_bits_too(
    name: str, nodes: Nodes, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    # As on one machine; the default on Flower is 0.5.
    experiment = tiny(*CASES[name], clients=2).with_changes({"guard.max_share": 1.0})
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(nodes.root / "state"))
    # Its default is one port for all simulations on a machine: a second one would join the first.
    monkeypatch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(free_port()))
    config = {
        "run-dir": str(nodes.root / "run"),
        "data-dir": str(nodes.root / "data"),
        "device": "cpu",
    }
    app = processes.folder / "app"
    write_app(app, "tiny", experiment, config)
    size = "num-supernodes=2 client-resources-num-cpus=1"
    command = ("flwr", "run", str(app), "--stream", "--federation-config", size)
    try:
        processes.run("run", *command, timeout=200)
        assert site_bits(nodes.root / "run") == site_bits(local.dir), processes.log_tail("run")
    finally:
        kill_federation(processes.home)  # Flower leaves a SuperLink behind


@pytest.mark.rows("C11")
def test_unknown_nodes_are_not_accepted(nodes: Nodes, processes: Processes) -> None:
    """An unregistered key, a SuperLink of another certificate authority, and no TLS at all."""
    address = processes.start_superlink()
    keys = processes.folder / "keys"
    make_node_key(keys / "stranger")
    good = processes.register("good")
    make_certificate(processes.folder / "others")
    config = {"client-id": "0", "data-dir": str(nodes.root / "data")}
    processes.start_supernode("stranger", address, keys / "stranger", config)
    ours = processes.certificate
    processes.certificate = processes.folder / "others" / "server.pem"
    processes.start_supernode("fooled", address, good, config)
    processes.certificate = ours
    insecure = ("--insecure", "--superlink", address, "--port", str(free_port()))
    processes.start("plain", "flower-supernode", *insecure)
    reasons = {
        "stranger": "Failed to activate SuperNode",
        "fooled": "CERTIFICATE_VERIFY_FAILED",
        "plain": "Connection attempt failed",
    }
    for name, reason in reasons.items():
        log = processes.log(name)
        wait_until(
            lambda log=log, reason=reason: reason in log.read_text(), 60, f"{name}: {reason}"
        )
    time.sleep(5)  # in which no unknown node may be accepted
    assert _node_states(processes) == ["registered"]  # the good one, which has not started yet
    assert not [name for name in reasons if "SuperNode ID" in processes.log(name).read_text()]
    processes.start_supernode("good", address, good, config)
    wait_until(lambda: _node_states(processes) == ["online"], 60, "the good node is accepted")
    assert "SuperNode ID" in processes.log("good").read_text()


def _node_states(processes: Processes) -> list[str]:
    log = processes.log("list")
    log.unlink(missing_ok=True)
    processes.run("list", "flwr", "supernode", "list", CONNECTION, "--format", "json")
    return [node["status"] for node in json.loads(log.read_text())["nodes"]]


STRANGERS_SERVER = """
from pathlib import Path
import time
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

mark = Path({mark!r})
(mark / "server").touch()
app = ServerApp()

@app.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < 2:
        time.sleep(0.2)
    messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
    answers = list(grid.send_and_receive(messages, timeout=90))
    reasons = [a.error.reason if a.has_error() else "done" for a in answers]
    (mark / "answers").write_text("\\n".join(reasons))
"""

STRANGERS_CLIENT = """
from pathlib import Path
from flwr.clientapp import ClientApp

Path({mark!r}, "node").touch()
app = ClientApp()
"""


class StrangersApp:
    """An app that leaves a file in `mark` wherever any of it is run."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "strange"
        self.mark = root / "mark"
        self.mark.mkdir()
        write_app(self.folder, "tiny", tiny("fedavg", "simclr", clients=2), {})
        for name, text in (("server", STRANGERS_SERVER), ("client", STRANGERS_CLIENT)):
            (self.folder / f"{name}_app.py").write_text(text.format(mark=str(self.mark)))

    def command(self) -> tuple[str, ...]:
        """Return the command that submits the app."""
        return ("flwr", "run", str(self.folder), CONNECTION, "--stream")

    def assert_runs_nowhere(self, processes: Processes) -> None:
        """Submit the app, and check that the server refuses it."""
        processes.start("strange", *self.command()).wait(100)
        assert "only the app with SHA-256" in processes.log("strange").read_text()
        assert not list(self.mark.iterdir())


@pytest.mark.rows("C11")
def test_a_strangers_app_is_run_nowhere(nodes: Nodes, processes: Processes) -> None:
    """First a stranger controls the server: the nodes do not run the stranger's app, but take part
    in the run of the app that they are pinned to. Then the server is pinned to that app, too."""
    experiment = tiny("fedavg", "simclr", clients=2)
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    federation = RealFederation(nodes, processes, experiment)
    strange = StrangersApp(nodes.root)
    link = processes.start_superlink()
    processes.pin_app(federation.app)
    with fleet_only(link, processes.folder / "keys") as address:
        _start_nodes(federation, address)
        processes.run("strange", *strange.command(), timeout=200)
        marks = sorted(path.name for path in strange.mark.iterdir())
        assert marks == ["answers", "server"], federation.logs()
        answers = (strange.mark / "answers").read_text().splitlines()
        assert len(answers) == 2
        assert all("only the app with SHA-256" in answer for answer in answers)
        assert federation.submit().wait(200) == 0, federation.logs()
        assert site_bits(federation.run) == site_bits(local.dir)
        _assert_fleet_port_accepts_no_commands(processes, strange, link, address)
    processes.stop("run", "superlink", "node0", "node1")
    for path in strange.mark.iterdir():
        path.unlink()
    federation.begin()
    strange.assert_runs_nowhere(processes)


def _start_nodes(federation: RealFederation, address: str) -> None:
    """Start the nodes through the fleet's part of the port."""
    processes = federation.processes
    for number, config in enumerate(federation.configs):
        name = f"node{number}"
        processes.start_supernode(name, address, processes.register(name), config)
    wait_until(lambda: _node_states(processes) == ["online"] * 2, 60, "the nodes are online")


def _assert_fleet_port_accepts_no_commands(
    processes: Processes, strange: StrangersApp, link: str, address: str
) -> None:
    """The fleet's part of the port accepts neither an app nor a key."""
    config = processes.home / "config.toml"
    config.write_text(config.read_text().replace(link, address))
    key = str(make_node_key(strange.mark / "key"))
    for command in (("run", str(strange.folder)), ("supernode", "register", key)):
        with pytest.raises(RunError, match="403 Forbidden"):  # the proxy's answer
            processes.run("outside", "flwr", *command, CONNECTION)


def _guide_units() -> list[list[str]]:
    """Return the commands of the guide's systemd units: the SuperLink's and a SuperNode's."""
    lines = re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", GUIDE.read_text(), re.MULTILINE)
    return [shlex.split(line.replace("\\\n", " ")) for line in lines]


def _start_unit(processes: Processes, name: str, command: list[str]) -> None:
    """Start a unit with the PATH that systemd gives, which does not have Flower's programs."""
    assert command[0] == "/srv/fedssl/venv/bin/fedssl"
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
        "HOME": str(processes.folder.parent),
        "FLWR_HOME": str(processes.home),
    }
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    with processes.log(name).open("wb") as log:
        processes.running[name] = subprocess.Popen(
            [sys.executable, "-m", "fedssl", *command[1:]],
            cwd=processes.folder,
            env=environment,
            stdout=log,
            stderr=log,
        )


def test_the_units_of_the_guide_start_and_run_only_their_app(
    nodes: Nodes, processes: Processes
) -> None:
    link_command, node_command = _guide_units()
    app = processes.folder / "hospitals"
    write_app(app, "tiny", tiny("fedavg", "simclr", clients=2), {})
    strange = StrangersApp(nodes.root)
    for path in (processes.folder / "keys").iterdir():
        shutil.copy(path, processes.folder)
    shutil.copy(processes.certificate, processes.folder / "ca.crt")  # it is its own authority
    port = str(free_port())
    address = f"127.0.0.1:{port}"
    connection = {"address": address, "root-certificates": str(processes.certificate)}
    config = tomli_w.dumps({"superlink": {CONNECTION: connection}})
    (processes.home / "config.toml").write_text(config)
    local = {"8802": port, "fl.example.org:8801": address}

    _start_unit(processes, "superlink", [local.get(word, word) for word in link_command])
    processes.wait_for_superlink(address)
    key = str(make_node_key(processes.folder / "north"))
    processes.run("register", "flwr", "supernode", "register", key, CONNECTION)
    _start_unit(processes, "north", [local.get(word, word) for word in node_command])
    wait_until(lambda: _node_states(processes) == ["online"], 60, "the node is online")
    strange.assert_runs_nowhere(processes)
    for name in ("superlink", "north"):
        text = f"SHA-256 {app_pinning.app_sha256(app)}, and no other"
        assert text in processes.log(name).read_text()


def test_an_upload_of_250_mb_passes() -> None:
    results = measure(250, rounds=1)
    print(results)
    assert results["dropped"] == []
    assert results["upload_mb"] > 245
