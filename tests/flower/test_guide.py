"""The commands of the guide, taken from its text and run on the loopback address in the folder that the guide names.

Only what belongs to a machine is replaced: /srv/fedssl and /data by folders of the test, ports by free ones, the
server's name by the loopback address, and numbers of the experiment by smaller ones. SuperNodes share a machine here,
so each gets a local port of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from PIL import Image
from test_network import fleet_only

from fedssl.report.rounds import read_rounds
from fedssl.runtimes.flower.kin import descendants, end_all_of, send
from fedssl.runtimes.flower.processes import free_port

GUIDE = Path(__file__).parents[2] / "docs/how-to/flower.md"
SITES = ("north", "south", "west")
SMALLER = {"rounds = 100": "rounds = 2", "size = 64": "size = 16", '"resnet18"': '"cnn"', "epochs = 5": "epochs = 1"}


def _blocks() -> list[str]:
    """The code blocks of the part about three hospitals, in their order."""
    part = GUIDE.read_text("utf-8").split("## Three hospitals, three machines")[1].split("\n## ")[0]
    return re.findall(r"^```\w+\n(.*?)^```", part, re.MULTILINE | re.DOTALL)


def _block(start: str) -> str:
    """The only block that begins so, or that has a line which does."""
    [found] = [block for block in _blocks() if re.search(rf"^{re.escape(start)}", block, re.MULTILINE)]
    return found


def _unit(program: str) -> str:
    """The command of the systemd unit that starts a program."""
    [found] = [block for block in _blocks() if "ExecStart=" in block and program in block]
    [command] = re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", found, re.MULTILINE)
    return command


def test_the_connection_is_not_taken_for_the_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`flwr supernode register` takes a connection named like a folder with an app for legacy usage, and fails."""
    from flwr.cli.config_migration import migrate

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    (tmp_path / "mine.toml").write_text(_block("rounds = 100"))
    init = shlex.split(_block("fedssl flower init"))
    subprocess.run([sys.executable, "-m", "fedssl.cli", *init[1:]], check=True, cwd=tmp_path)
    app = init[3]
    assert (tmp_path / app / "pyproject.toml").is_file()
    [register] = [shlex.split(line) for line in _block("flwr supernode register").splitlines()]
    run = shlex.split(_block("flwr run"))
    connection = register[4]
    assert (run[2], run[3]) == (app, connection)
    assert f"[superlink.{connection}]" in _block("[superlink.")
    migrate(connection, args=[])
    with pytest.raises(click.ClickException, match="Cannot migrate configuration"):
        migrate(app, args=[])  # what the guide must not say


class Machine:
    """One folder for all machines of the guide: a home, a shell, and the units that run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ports = {"8801": str(free_port()), "8802": str(free_port())}
        self.running: list[subprocess.Popen[bytes]] = []
        (root / "home").mkdir(parents=True)
        self.environment = {
            "HOME": str(root / "home"),
            "FLWR_HOME": str(root / "home/.flwr"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "OMP_NUM_THREADS": "1",
        }

    def here(self, text: str, site: str = "north") -> str:
        """A text of the guide, for this machine."""
        program = f"{shlex.quote(sys.executable)} -m fedssl.cli"
        text = text.replace("/srv/fedssl/venv/bin/fedssl", program).replace("/srv/fedssl", str(self.root))
        text = text.replace("north", site).replace("'/data'", f"'{self.root}/data/{site}'")
        text = text.replace("fl.example.org:", "127.0.0.1:")
        for port, free in self.ports.items():
            text = text.replace(f":{port}", f":{free}").replace(f"--port {port}", f"--port {free}")
        return text

    def shell(self, command: str, timeout: float = 120) -> str:
        print(f"$ {command.strip()}")
        found = subprocess.run(
            ["bash", "-euc", command],
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            text=True,
        )
        print(found.stdout)
        assert found.returncode == 0, found.stdout
        return found.stdout

    def unit(self, name: str, command: str) -> Path:
        """Start what systemd would; its log."""
        print(f"# {name}.service: {command}")
        log = self.root / f"{name}.log"
        with log.open("wb") as file:
            self.running.append(
                subprocess.Popen(
                    ["bash", "-c", f"exec {command}"],
                    cwd=self.root,
                    env=self.environment,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            )
        return log

    def end(self) -> None:
        for process in self.running:
            for pid in (process.pid, *descendants(process.pid)):
                send(pid, signal.SIGKILL)
            process.wait()
        end_all_of(self.root / "home/.flwr")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path / "srv")
    try:
        yield found
    finally:
        found.end()


def _until(log: Path, text: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while text not in log.read_text("utf-8", "replace"):
        assert time.monotonic() < end, f"{text!r} is not in {log.name}:\n{log.read_text('utf-8', 'replace')[-3000:]}"
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_guide_works_on_loopback(machine: Machine) -> None:
    """From the experiment to the end of a run on three sites; every command is the guide's."""
    random = np.random.default_rng(0)
    for site in SITES:
        scans = machine.root / "data" / site / "scans"
        scans.mkdir(parents=True)
        for i in range(16):
            Image.fromarray(random.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(scans / f"{i}.png")
    experiment = _block("rounds = 100")
    for large, small in SMALLER.items():
        assert large in experiment
        experiment = experiment.replace(large, small)
    (machine.root / "mine.toml").write_text(experiment)
    machine.shell(machine.here(_block("fedssl flower init")))
    machine.shell(machine.here(_block("openssl req")))
    machine.unit("superlink", machine.here(_unit("flower-superlink")))
    _until(machine.root / "superlink.log", "Uvicorn running on", 120)
    (machine.root / "home/.flwr").mkdir(exist_ok=True)
    (machine.root / "home/.flwr/config.toml").write_text(machine.here(_block("[superlink.")))
    for site in SITES:
        machine.shell(machine.here(_block("ssh-keygen"), site))
        said = machine.shell(machine.here(_block("flwr supernode register"), site))
        assert "registered successfully" in said
    link = f"127.0.0.1:{machine.ports['8802']}"
    with fleet_only(link, machine.root, int(machine.ports["8801"])):
        for site in SITES:
            # On machines of their own all SuperNodes may have the same local port.
            machine.unit(site, f"{machine.here(_unit('flower-supernode'), site)} --port {free_port()}")
        said = machine.shell(machine.here(_block("flwr run")), timeout=600)
    lines = list(read_rounds(machine.root / "home/fedssl-runs/mine/rounds.jsonl"))
    assert [[client["client"] for client in line["clients"]] for line in lines] == [list(SITES)] * 2
    assert [client["dropped"] for line in lines for client in line["clients"]] == [None] * 6
    assert (machine.root / "home/fedssl-runs/mine/backbone.safetensors").is_file()
