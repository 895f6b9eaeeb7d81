"""What `fedssl flower init` writes, what `up` refuses, which app is run, and which processes are ended."""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import signal
import stat
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

import fedssl
from fedssl.errors import RunError
from fedssl.experiment import Experiment, load
from fedssl.runtimes.flower import only
from fedssl.runtimes.flower.keys import make_certificates, make_node_key
from fedssl.runtimes.flower.kin import all_of, descendants, end_all_of
from fedssl.runtimes.flower.logs import joining
from fedssl.runtimes.flower.node import Place
from fedssl.runtimes.flower.processes import processes
from fedssl.runtimes.flower.serve import ServerSettings
from fedssl.runtimes.flower.switches import QUIET, chatter
from fedssl.runtimes.flower.up import watch

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own
def test_an_app_is_what_flower_takes(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "My app"
    assert cli("flower", "init", str(folder), "demo", "--set", "rounds=7")[0] == 0
    assert Experiment.from_file(folder / "experiment.toml") == load("demo", {"rounds": 7})
    assert len(build_fab_from_disk(folder)) > 1000
    assert isinstance(runpy.run_path(str(folder / "server_app.py"))["app"], ServerApp)
    assert isinstance(runpy.run_path(str(folder / "client_app.py"))["app"], ClientApp)


def test_its_config_has_every_setting_with_its_default(cli: Cli, tmp_path: Path) -> None:
    cli("flower", "init", str(tmp_path / "app"), "demo")
    project = tomllib.loads((tmp_path / "app/pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    usual = {key.replace("_", "-"): value for key, value in ServerSettings().model_dump().items()}
    assert config == {**usual, "run-dir": "~/fedssl-runs/demo"}
    assert not [name for name in project["project"]["dependencies"] if name.startswith("fedssl")]


def test_its_readme_says_how_it_is_run_alone_and_what_to_stop(cli: Cli, tmp_path: Path) -> None:
    cli("flower", "init", str(tmp_path / "app"), "demo")
    text = (tmp_path / "app/README.md").read_text()
    assert "fedssl flower only app flower-supernode" in text
    assert 'pkill -u "$USER" -f "flower-superlink --insecure --simulation"' in text
    assert all(f"{key}={value}" in text for key, value in QUIET.items())


def test_what_flower_may_tell_others_is_said() -> None:
    assert chatter(QUIET).endswith("are off")
    assert "telemetry may be on: FLWR_TELEMETRY_ENABLED=0 in" in chatter({**QUIET, "FLWR_TELEMETRY_ENABLED": "1"})
    assert "update check" in chatter({})


def test_nothing_is_overwritten(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    code, _, said = cli("flower", "init", str(tmp_path), "demo")
    assert (code, len(said.splitlines())) == (2, 1)
    assert "not empty" in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_without_flower_it_is_said_how_to_get_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedssl.cli_flower.find_spec", lambda name: None)
    code, _, said = cli("flower", "up", "demo")
    assert (code, said) == (2, 'fedssl: Flower is not installed: in a clone of fedssl, pip install ".[flower]"\n')


def test_a_run_of_another_experiment_is_refused_before_anything_starts(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(load("demo").to_toml())
    (tmp_path / "rounds.jsonl").write_text("{}\n")
    code, _, said = cli("flower", "up", "demo", "--set", "seed=5", "--dir", str(tmp_path))
    assert code == 2
    assert "holds a run of another experiment (seed: 0 there, 5 asked for" in said
    assert {path.name for path in tmp_path.iterdir()} == {"experiment.toml", "rounds.jsonl"}


def test_more_nodes_than_clients_are_refused_before_anything_starts(cli: Cli, tmp_path: Path) -> None:
    code, _, said = cli("flower", "up", "demo", "--clients", "6", "--dir", str(tmp_path / "run"))
    assert (code, said) == (2, "fedssl: the experiment has 5 clients, too few for 6 SuperNodes\n")
    assert not (tmp_path / "run").exists()


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    public = make_node_key(tmp_path / "node")
    for name in ("server.key", "node"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert re.match(r"ecdsa-sha2-nistp384 \S+\n$", public.read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"ca.crt", "server.pem", "server.key", "node", "node.pub"}


@pytest.mark.parametrize(
    ("node", "run", "expected"),
    [
        ({"client-id": "a", "data-dir": "/d", "memory-dir": "/m"}, {"data-dir": "/r"}, ("a", "/d", "/m", "own")),
        ({"client-id": 7, "memory-dir": "/m"}, {"data-dir": ""}, ("7", "data", "/m", "own")),
        ({"partition-id": 1, "num-partitions": 2}, {"data-dir": "/r", "memory-dir": "/k"}, (None, "/r", "/k", "dealt")),
        ({"client-id": "a", "memory-dir": "/m"}, {"data-dir": "/r", "memory-dir": "/k"}, ("a", "data", "/m", "own")),
    ],
)
def test_where_a_node_finds_things(node: dict[str, object], run: dict[str, object], expected: tuple[object]) -> None:
    place = Place.read(node, run)
    assert (place.client, str(place.data), str(place.memory), place.images) == expected


@pytest.mark.parametrize("node", [{}, {"client-id": "a", "images": "all"}])
def test_a_node_that_is_told_too_little_or_nonsense_says_so(node: dict[str, object]) -> None:
    with pytest.raises(fedssl.errors.ConfigError, match=r"client-id and data-dir|'own' or 'dealt'"):
        Place.read(node, {})


# -- one app and no other --


class Unpacker(SimpleNamespace):
    """A module of Flower's, as far as it is guarded: reads an app, and unpacks it."""

    def __init__(self) -> None:
        super().__init__(unpacked=[], fab_from_proto=lambda fab: fab)
        self.install_from_fab = lambda content, skip_prompt=False: self.unpacked.append(content)


def test_another_app_is_not_even_unpacked() -> None:
    """Whatever hash comes with it."""
    agreed = hashlib.sha256(b"ours").hexdigest()
    module = Unpacker()
    only.guard(module, agreed)
    module.install_from_fab(b"ours", skip_prompt=True)
    with pytest.raises(PermissionError, match=f"only the app with SHA-256 {agreed} is run here"):
        module.install_from_fab(b"theirs", skip_prompt=True)
    assert module.unpacked == [b"ours"]
    claims = SimpleNamespace(content=b"theirs", hash_str=agreed)
    assert module.fab_from_proto(claims).hash_str == hashlib.sha256(b"theirs").hexdigest()


def test_a_flower_that_unpacks_otherwise_runs_nothing() -> None:
    with pytest.raises(AttributeError):
        only.guard(SimpleNamespace(), "0" * 64)


def test_flowers_modules_are_as_they_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import import_module

    for work, package, entry in only.CHECKED.values():
        module = import_module(work)
        for name in ("install_from_fab", "fab_from_proto"):
            monkeypatch.setattr(module, name, getattr(module, name))  # puts them back
        before = module.install_from_fab
        only.guard(module, "0" * 64)
        assert module.install_from_fab is not before
        assert callable(getattr(import_module(package), entry))


def test_an_apps_hash_is_that_of_what_is_submitted(cli: Cli, tmp_path: Path) -> None:
    """And another if a byte of it is another; a copy elsewhere has the same."""
    for name in ("a", "b"):
        cli("flower", "init", str(tmp_path / name / "app"), "demo")
    app = tmp_path / "a/app"
    found = only.fingerprint(app)
    assert found == only.fingerprint(tmp_path / "b/app")
    (app / "client_app.py").write_text((app / "client_app.py").read_text() + "\n")
    assert only.fingerprint(app) != found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own
def test_every_program_that_runs_an_app_comes_second(tmp_path: Path) -> None:
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    programs = only.write_programs(tmp_path / "bin", "0" * 64)
    path = only.environment(programs, {"PATH": "/usr/bin"})["PATH"].split(os.pathsep)
    assert path == [str(programs), str(Path(sys.executable).parent), "/usr/bin"]
    assert {file.name for file in programs.iterdir()} == set(TASK_TYPE_TO_COMMAND.values())
    refused = subprocess.run([programs / "flwr-agentapp"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "flwr-agentapp is not run here" in refused.stderr


@pytest.mark.parametrize(
    ("app", "command", "reason"),
    [("app", "sh", "must be flower-superlink or flower-supernode"), ("none", "flower-supernode", "no pyproject.toml")],
)
def test_only_flowers_programs_are_started_for_an_app(
    cli: Cli, tmp_path: Path, app: str, command: str, reason: str
) -> None:
    cli("flower", "init", str(tmp_path / "app"), "demo")
    code, _, said = cli("flower", "only", str(tmp_path / app), command, "--insecure")
    assert code == 2
    assert reason in said


def test_the_program_that_is_started_runs_that_app_alone(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("flower", "init", str(tmp_path / "app"), "demo")
    became = []
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(os, "execvpe", lambda *words: became.append(words))
    assert cli("flower", "only", str(tmp_path / "app"), "flower-supernode", "--superlink", "here:1")[0] == 0
    [(program, words, environment)] = became
    assert (program, words) == ("flower-supernode", ["flower-supernode", "--superlink", "here:1"])
    first = Path(environment["PATH"].split(os.pathsep)[0])
    assert only.fingerprint(tmp_path / "app") in (first / "flwr-clientapp").read_text()
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"


# -- proxies --


PROXY = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "grpc_proxy")
ASK = "import httpx, sys; print(httpx.get(sys.argv[1], timeout=10).status_code)"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[str]:
    """The address of an HTTP server on the loopback address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_flowers_processes_reach_loopback_without_the_proxy(variable: str, loopback: str) -> None:
    """httpx is what Flower's processes talk to each other with. Nothing listens on port 9."""
    given = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment = only.environment(None, {**given, variable: "http://127.0.0.1:9"})
    found = subprocess.run([sys.executable, "-c", ASK, loopback], env=environment, capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("200\n", "")


def test_hosts_that_need_no_proxy_are_kept() -> None:
    given = {"NO_PROXY": "example.org, 10.0.0.1", "no_proxy": "10.0.0.1", "HTTPS_PROXY": "http://proxy:3128"}
    environment = only.environment(None, given)
    assert environment["NO_PROXY"] == environment["no_proxy"] == "10.0.0.1,example.org,127.0.0.1,localhost,::1"
    assert environment["HTTPS_PROXY"] == "http://proxy:3128"  # a SuperNode may need it to reach the server


def test_a_federation_on_this_machine_uses_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also none that httpx would refuse to start with, as it does where a package for SOCKS is missing."""
    for variable in PROXY:
        monkeypatch.setenv(variable, "socks5://127.0.0.1:9")
    with processes(tmp_path) as started:
        assert not set(PROXY) & started.environment().keys()


# -- processes --


def _until(true: Callable[[], object], what: str, seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def test_what_a_process_has_started_is_found_without_ps(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = subprocess.Popen(["/bin/sh", "-c", "sleep 60 & sleep 60 & wait"])
    monkeypatch.setenv("PATH", "")
    try:
        _until(lambda: len(descendants(parent.pid)) == 2, "both are seen")
    finally:
        for pid in (*descendants(parent.pid), parent.pid):
            os.kill(pid, signal.SIGKILL)
        parent.wait()


def test_what_is_left_of_a_federation_is_ended_and_no_other(tmp_path: Path) -> None:
    """By its FLWR_HOME: `home`, but not `home2`."""
    left, other = (
        subprocess.Popen(["sleep", "60"], env={**os.environ, "FLWR_HOME": str(tmp_path / name)})
        for name in ("home", "home2")
    )
    try:
        _until(lambda: all_of(tmp_path / "home") == [left.pid], "it is seen")
        end_all_of(tmp_path / "home")
        assert left.wait(10) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


STARTER = """
import sys
from pathlib import Path
from fedssl.runtimes.flower.processes import Processes
started = Processes(Path(sys.argv[1]))
print(started.start("sleeper", "sleep", "60").pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_what_was_started_ends_when_the_starter_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTER, str(tmp_path)]
    starter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert starter.stdin is not None
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    _until(lambda: all_of(tmp_path / "home") == [pid], "it runs")
    starter.kill()
    starter.wait()
    starter.stdin.close()
    starter.stdout.close()
    _until(lambda: not all_of(tmp_path / "home"), "it ends, too")


ORPHAN = """
import os, sys, time
from fedssl.runtimes.flower.app import end_with
end_with(os.getppid())
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    shell = subprocess.Popen(
        ["/bin/sh", "-c", '"$0" -W ignore -c "$1" & wait', sys.executable, ORPHAN],
        stdout=subprocess.PIPE,
        env={**os.environ, "FLWR_HOME": str(tmp_path)},
    )
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    assert pid in all_of(tmp_path)
    shell.kill()
    shell.wait()
    shell.stdout.close()
    _until(lambda: pid not in all_of(tmp_path), "it ends, too")


def test_a_node_that_has_ended_ends_the_wait(tmp_path: Path) -> None:
    """With its last words, and not after the ten minutes that a server waits for it."""
    with processes(tmp_path) as started:
        started.start("node0", "sh", "-c", "echo no such key; exit 3")
        job = started.start("run", "sleep", "60")
        with pytest.raises(RunError, match=r"node0 has ended, and the run with it(.|\n)*no such key"):
            watch(job, started, tmp_path, load("demo"), "demo", True, lambda line: None)
    assert not all_of(tmp_path / "home")


def test_a_run_that_fails_is_told_in_fedssls_own_words(tmp_path: Path) -> None:
    words = "Traceback\n  File x\nfedssl.errors.RunError: only 1 of 2 clients joined\nsome banner\n"
    with processes(tmp_path) as started:
        job = started.start("run", "printf", "%s", words)
        with pytest.raises(RunError) as raised:
            watch(job, started, tmp_path, load("demo"), "demo", True, lambda line: None)
    assert "the same command goes on. only 1 of 2 clients joined\n" in str(raised.value)
    assert "banner" not in str(raised.value)


def test_who_joins_is_passed_on_once_and_in_whole_lines(tmp_path: Path) -> None:
    log, said = tmp_path / "log", list[str]()
    log.write_text("some banner\n0 of 2 clients have joined; waiting\nrejected nod")
    hear = joining(log, said.append)
    hear()
    hear()
    assert said == ["the server says: 0 of 2 clients have joined; waiting"]
    with log.open("a") as file:
        file.write("e 7: its model is another\n")
    hear()
    assert said[1:] == ["the server says: rejected node 7: its model is another"]
