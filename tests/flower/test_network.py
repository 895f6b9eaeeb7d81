"""Over the real path: a SuperLink and SuperNodes on loopback, with TLS and node authentication."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from fake_grid import CASES, Nodes, tiny

import fedssl
from benchmarks.flower import measure
from fedssl.errors import RunError
from fedssl.experiment import Experiment
from fedssl.report.rounds import read_rounds
from fedssl.runtimes.flower import only
from fedssl.runtimes.flower.keys import make_certificates, make_node_key
from fedssl.runtimes.flower.kin import all_of, end_all_of
from fedssl.runtimes.flower.processes import CONNECTION, Processes, free_port, processes
from fedssl.runtimes.flower.template import write_app
from fedssl.runtimes.flower.up import gather, up
from fedssl.store import Store, unseal
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
            if unseal(path.read_bytes())["round"] >= round:
                return True
        return False

    def logs(self) -> str:
        return "\n".join(f"== {p.name}\n{p.read_text()[-3000:]}" for p in (self.started.folder / "logs").iterdir())


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Processes]:
    with processes(tmp_path / "flower") as running:
        yield running


def _kill(process: subprocess.Popen[Any]) -> None:
    """This process alone: what it has started must see for itself that it is gone."""
    process.kill()
    process.wait()


@pytest.mark.parametrize(("algorithm", "method"), [("fedavg", "simclr"), ("fedema", "byol")])
def test_the_bits_of_a_local_run_and_nothing_left_behind(algorithm: str, method: str, nodes: Nodes) -> None:
    experiment = tiny(algorithm, method, clients=2)
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    up(experiment, nodes.root / "run", nodes.root / "data", "tiny", "cpu", quiet=True)
    assert not all_of(nodes.root / "run/flower/home")
    assert _bits(nodes.root / "run") == _bits(local.dir)
    assert fedssl.Run(nodes.root / "run").results["table"] == local.results["table"]


def test_a_proxy_in_the_environment_stops_no_node(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens on port 9. Nodes used to try it for ever, and the server waited for them."""
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    experiment = tiny("fedavg", "simclr", clients=2, rounds=1)
    up(experiment, nodes.root / "run", nodes.root / "data", "tiny", "cpu", quiet=True)
    assert [client["dropped"] for client in _rounds(nodes.root / "run")[0]["clients"]] == [None, None]


@pytest.mark.parametrize("name", CASES)
def test_flowers_simulation_gives_these_bits_too(
    name: str, nodes: Nodes, started: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    experiment = tiny(*CASES[name], clients=2).with_changes({"guard.max_share": 1.0})  # by default another on Flower
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
        end_all_of(started.home)  # Flower leaves a SuperLink behind


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
    port = str(free_port())
    started.start("plain", "flower-supernode", "--insecure", "--superlink", address, "--port", port)
    reasons = {
        "stranger": "Failed to activate SuperNode",
        "fooled": "CERTIFICATE_VERIFY_FAILED",
        "plain": "Connection attempt failed",
    }
    for name, reason in reasons.items():
        _until(lambda name=name, reason=reason: reason in started.log(name).read_text(), 60, f"{name}: {reason}")
    time.sleep(5)  # in which none of them is let in after all
    assert _online(started) == ["registered"]  # the good one, which never came
    assert not [name for name in reasons if "SuperNode ID" in started.log(name).read_text()]
    started.supernode("good", address, good, config)
    _until(lambda: _online(started) == ["online"], 60, "the good node is let in")
    assert "SuperNode ID" in started.log("good").read_text()


def _online(started: Processes) -> list[str]:
    started.log("list").unlink(missing_ok=True)
    started.call("list", "flwr", "supernode", "list", CONNECTION, "--format", "json")
    return [node["status"] for node in json.loads(started.log("list").read_text())["nodes"]]


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
    letters = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
    answers = list(grid.send_and_receive(letters, timeout=90))
    (mark / "answers").write_text("\\n".join(a.error.reason if a.has_error() else "done" for a in answers))
"""

STRANGERS_CLIENT = """
from pathlib import Path
from flwr.clientapp import ClientApp

Path({mark!r}, "node").touch()
app = ClientApp()
"""


def _strangers_app(folder: Path, mark: Path) -> None:
    """Leaves a file in `mark` wherever any of it is run."""
    mark.mkdir()
    write_app(folder, "tiny", tiny("fedavg", "simclr", clients=2), {})
    (folder / "server_app.py").write_text(STRANGERS_SERVER.format(mark=str(mark)))
    (folder / "client_app.py").write_text(STRANGERS_CLIENT.format(mark=str(mark)))


def test_a_strangers_app_is_run_nowhere(nodes: Nodes, started: Processes) -> None:
    """First the server is a stranger's, who runs what he likes there; the nodes run nothing of it, and are there for
    the app they agreed to. Then the server runs only that app, too. Nodes reach nothing but the fleet's part."""
    experiment = tiny("fedavg", "simclr", clients=2)
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    field, mark = Field(nodes, started, experiment), nodes.root / "mark"
    _strangers_app(nodes.root / "strange", mark)
    link = started.superlink()
    started.only(started.folder / "app")
    with fleet_only(link, started.folder / "keys") as address:
        for number, config in enumerate(field.configs):
            started.supernode(f"node{number}", address, started.register(f"node{number}"), config)
        _until(lambda: _online(started) == ["online"] * 2, 60, "the nodes are there, by way of the fleet's part")
        started.call("strange", "flwr", "run", str(nodes.root / "strange"), CONNECTION, "--stream", timeout=200)
        assert sorted(path.name for path in mark.iterdir()) == ["answers", "server"], field.logs()
        answers = (mark / "answers").read_text().splitlines()
        assert len(answers) == 2
        assert all("only the app with SHA-256" in answer for answer in answers)
        assert field.submit().wait(200) == 0, field.logs()
        assert _bits(field.run) == _bits(local.dir)
        # Who has the fleet's part of the port only can neither submit nor make a key known.
        text = (started.home / "config.toml").read_text().replace(link, address)
        (started.home / "config.toml").write_text(text)
        for words in (
            ("run", str(nodes.root / "strange")),
            ("supernode", "register", str(make_node_key(mark / "key"))),
        ):
            with pytest.raises(RunError, match="403"):
                started.call("outside", "flwr", *words, CONNECTION)
    started.end("run", "superlink", "node0", "node1")
    for path in mark.iterdir():
        path.unlink()
    field.begin()
    started.start("strange", "flwr", "run", str(nodes.root / "strange"), CONNECTION, "--stream").wait(100)
    assert "only the app with SHA-256" in started.log("strange").read_text()
    assert not list(mark.iterdir())


GUIDE = Path(__file__).parents[2] / "docs/how-to/flower.md"


def test_the_units_of_the_guide_start(nodes: Nodes, started: Processes) -> None:
    """With the PATH that systemd gives, which does not have Flower's programs on it; and they run their app only."""
    link, node = (
        shlex.split(text.replace("\\\n", " ").removeprefix("ExecStart="))
        for text in re.findall(r"^ExecStart=(?:.*\\\n)*.*$", GUIDE.read_text(), re.MULTILINE)
    )
    app, port, mark = started.folder / "hospitals", str(free_port()), nodes.root / "mark"
    write_app(app, "tiny", tiny("fedavg", "simclr", clients=2), {})
    _strangers_app(nodes.root / "strange", mark)
    for path in (started.folder / "keys").iterdir():
        shutil.copy(path, started.folder)
    address = f"127.0.0.1:{port}"
    connection = {"address": address, "root-certificates": str(started.ca)}
    (started.home / "config.toml").write_text(tomli_w.dumps({"superlink": {CONNECTION: connection}}))

    def unit(name: str, words: list[str]) -> None:
        changed = {"8802": port, "fl.example.org:8801": address}
        words = [changed.get(word, word) for word in words]
        assert words[0] == "/srv/fedssl/venv/bin/fedssl"
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "HOME": str(nodes.root)}
        if "PYTHONPATH" in os.environ:
            environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
        environment["FLWR_HOME"] = str(started.home)
        with started.log(name).open("wb") as log:
            started.running[name] = subprocess.Popen(
                [sys.executable, "-m", "fedssl.cli", *words[1:]],
                cwd=started.folder,
                env=environment,
                stdout=log,
                stderr=log,
            )

    unit("superlink", link)
    started.wait_for(address)
    started.call("register", "flwr", "supernode", "register", str(make_node_key(started.folder / "north")), CONNECTION)
    unit("north", node)
    _until(lambda: _online(started) == ["online"], 60, "the node is there")
    started.start("strange", "flwr", "run", str(nodes.root / "strange"), CONNECTION, "--stream").wait(100)
    assert "only the app with SHA-256" in started.log("strange").read_text()
    assert not list(mark.iterdir())
    for name in ("superlink", "north"):
        assert f"SHA-256 {only.fingerprint(app)}, and no other" in started.log(name).read_text()


class FleetOnly(BaseHTTPRequestHandler):
    """What a reverse proxy in front of a SuperLink does: passes on the fleet's part, and nothing else."""

    protocol_version = "HTTP/1.1"
    link: tuple[str, ssl.SSLContext]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.startswith("/v1/fleet/"):
            return self._say(403, b"", {})
        address, context = self.link
        there = http.client.HTTPSConnection(address, context=context)
        there.request("POST", self.path, body, dict(self.headers))
        answer = there.getresponse()
        content = answer.read()
        there.close()
        return self._say(answer.status, content, {"Content-Type": answer.headers["Content-Type"]})

    def do_GET(self) -> None:
        self._say(403, b"", {})

    def _say(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None: ...


@contextlib.contextmanager
def fleet_only(link: str, keys: Path, port: int = 0) -> Iterator[str]:
    inside = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Proxy", (FleetOnly,), {"link": (link, inside)}))
    server.daemon_threads = True
    outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    outside.load_cert_chain(keys / "server.pem", keys / "server.key")
    server.socket = outside.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# A round of several seconds, long enough to be hit in it; one client is enough for it.
SLOW = {"train.epochs": 400, "rounds": 4, "clients": 2, "guard.min_uploads": 1}


def test_a_killed_supernode_comes_back_with_its_memory(nodes: Nodes, started: Processes) -> None:
    """The round it is killed in closes with the other client; it is back in a later one, and remembers."""
    experiment = tiny("fedema", "byol", **{**SLOW, "rounds": 10})
    field = Field(nodes, started, experiment, round_timeout=40.0)
    field.begin()
    job = field.submit()
    _until(lambda: field.claimed("1", 2), 240, "client 1 is in its third round")
    _kill(started.running.pop("node1"))  # its superexec and the process that trains are left to themselves
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


def test_up_leaves_nothing_running_and_the_same_command_goes_on(nodes: Nodes) -> None:
    """After SIGKILL and after Ctrl-C, to the bits of a run nobody disturbed; a second `up` beside it changes nothing.
    The run directory's name has a quote in it, and a second's has both kinds."""
    experiment = tiny("fedavg", "simclr", **SLOW)
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    (nodes.root / "tiny.toml").write_text(experiment.to_toml())
    run = nodes.root / 'it\'s "mine"'
    home = run / "flower/home"
    command = [sys.executable, "-m", "fedssl.cli", "flower", "up", "tiny.toml", "--dir", run.name, "--device", "cpu"]
    wanted: dict[str, Any] = {"cwd": nodes.root, "text": True, "start_new_session": True}

    first = subprocess.Popen(command, stderr=subprocess.DEVNULL, **wanted)
    try:
        _until(lambda: _rounds(run), 200, "a first round")
        second = subprocess.run(command, capture_output=True, timeout=100, **wanted)
        assert first.poll() is None
        assert all_of(home)
    finally:
        _kill(first)
    assert second.returncode == 4
    assert f"flower is in use by process {first.pid}; nothing was changed" in second.stderr
    _until(lambda: not all_of(home), 60, "nothing is left")  # Flower tries a few times to reach who is gone

    done = len(_rounds(run))
    third = subprocess.Popen(command, stderr=subprocess.PIPE, **wanted)
    try:
        _until(lambda: len(_rounds(run)) > done, 200, "another round")
        third.send_signal(signal.SIGINT)
        asked = time.monotonic()
        _, said = third.communicate(timeout=60)
    finally:
        _kill(third)
    assert time.monotonic() - asked < 15
    assert third.returncode == 130
    assert "; the same command goes on" in said.splitlines()[-1]
    assert "the server says: 0 of 2 clients" in said
    assert not all_of(home)

    subprocess.run(command, check=True, capture_output=True, timeout=300, **wanted)
    assert _bits(run) == _bits(local.dir)
    logs = (run / "flower/logs/run.log").stat().st_mtime_ns
    subprocess.run(command, check=True, capture_output=True, timeout=100, **wanted)
    assert (run / "flower/logs/run.log").stat().st_mtime_ns == logs  # a finished run needs no federation


def test_a_killed_superlink_is_gone_on_from(nodes: Nodes, started: Processes) -> None:
    """Started anew, the run submitted again: it goes on where it was, to the bits of a run nobody disturbed. Only the
    SuperLink is killed; its ServerApp, which has the run directory's lock, must end by itself."""
    experiment = tiny("fedema", "byol", **SLOW)
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    field = Field(nodes, started, experiment)
    field.begin()
    field.submit()
    _until(lambda: field.claimed("1", 2), 240, "client 1 is in its third round")
    started.end("run")
    _kill(started.running.pop("superlink"))
    _until(lambda: not _serving(started), 20, "the ServerApp ends, too")
    started.end("node0", "node1")
    field.begin()
    job = field.submit()
    _until(lambda: job.poll() is not None, 500, "the run ends")
    roll = json.loads((field.run / "flower.json").read_text())
    assert roll["starts"][0] == 0
    assert roll["starts"][-1] in (1, 2), field.logs()
    assert _bits(field.run) == _bits(local.dir)


def _serving(started: Processes) -> list[int]:
    lines = {pid: Path(f"/proc/{pid}/cmdline") for pid in all_of(started.home)}
    return [pid for pid, line in lines.items() if line.exists() and b"flwr-serverapp" in line.read_bytes()]


def test_an_upload_of_250_mb_passes() -> None:
    found = measure(250, rounds=1)
    print(found)
    assert found["dropped"] == []
    assert found["upload_mb"] > 245
