"""The commands of the guide, taken from its text and run on the loopback address.

Only values of a machine are replaced: /srv/fedssl and /data by folders of the test, ports
by free ones, the server's name by the loopback address, and numbers of the experiment by smaller
ones. SuperNodes share a machine here, so each gets a separate local port.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from fleet_proxy import fleet_only
from PIL import Image

from fedssl.flower.local_processes import free_port
from fedssl.flower.process_tree import descendants, kill, kill_federation
from fedssl.runs.rounds_log import read_rounds

GUIDE = Path(__file__).parents[2] / "docs/how-to/flower.md"
SITES = ("north", "south", "west")
SMALLER = {
    "rounds = 100": "rounds = 2",
    "size = 64": "size = 16",
    '"resnet18"': '"cnn"',
    "epochs = 5": "epochs = 1",
}


def _blocks() -> list[str]:
    """Return the code blocks of the part about three hospitals, in their order."""
    text = GUIDE.read_text("utf-8").split("## Example: three hospitals, three machines")[1]
    part = text.split("\n## ")[0]
    return re.findall(r"^```\w+\n(.*?)^```", part, re.MULTILINE | re.DOTALL)


def _block(start: str) -> str:
    """Return the only block with a line that begins with `start`."""
    line = re.compile(rf"^{re.escape(start)}", re.MULTILINE)
    [block] = [block for block in _blocks() if line.search(block)]
    return block


def _unit(program: str) -> str:
    """Return the command of the systemd unit that starts a program."""
    [block] = [block for block in _blocks() if "ExecStart=" in block and program in block]
    [command] = re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", block, re.MULTILINE)
    return command


def test_the_connection_is_not_taken_for_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`flwr supernode register` fails for a connection that is named like the folder of an app."""
    from flwr.cli.config_migration import migrate

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    (tmp_path / "mine.toml").write_text(_block("rounds = 100"))
    init = shlex.split(_block("fedssl flower init"))
    subprocess.run([sys.executable, "-m", "fedssl", *init[1:]], check=True, cwd=tmp_path)
    app = init[3]
    assert (tmp_path / app / "pyproject.toml").is_file()
    [register] = [shlex.split(line) for line in _block("flwr supernode register").splitlines()]
    run = shlex.split(_block("flwr run"))
    connection = register[4]
    assert (run[2], run[3]) == (app, connection)
    assert f"[superlink.{connection}]" in _block("[superlink.")
    migrate(connection, args=[])
    with pytest.raises(click.ClickException, match="Cannot migrate configuration"):
        migrate(app, args=[])


class Machine:
    """One folder for all machines of the guide: a home, a shell, and the running units."""

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
        """Return a text of the guide, adapted to this machine."""
        program = f"{shlex.quote(sys.executable)} -m fedssl"
        text = text.replace("/srv/fedssl/venv/bin/fedssl", program)
        text = text.replace("/srv/fedssl", str(self.root))
        text = text.replace("north", site)
        text = text.replace("'/data'", f"'{self.root}/data/{site}'")
        text = text.replace("fl.example.org:", "127.0.0.1:")
        for port, free in self.ports.items():
            text = text.replace(f":{port}", f":{free}")
            text = text.replace(f"--port {port}", f"--port {free}")
        return text

    def shell(self, command: str, timeout: float = 120) -> str:
        """Run a command in a shell, and return its output."""
        print(f"$ {command.strip()}")
        result = subprocess.run(
            ["bash", "-euc", command],
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            text=True,
        )
        print(result.stdout)
        assert result.returncode == 0, result.stdout
        return result.stdout

    def unit(self, name: str, command: str) -> Path:
        """Start the command of a systemd unit, and return the path of its log."""
        print(f"# {name}.service: {command}")
        log = self.root / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.root,
                env=self.environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.running.append(process)
        return log

    def stop(self) -> None:
        """Kill all units and their descendants."""
        for process in self.running:
            children = descendants(process.pid)
            process.kill()
            for child in children:
                kill(child)
            process.wait()
        kill_federation(self.root / "home/.flwr")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """The machines of the guide, whose units end with the test."""
    loopback = Machine(tmp_path / "srv")
    try:
        yield loopback
    finally:
        loopback.stop()


def _wait_for_text(log: Path, text: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    content = log.read_text("utf-8", "replace")
    while text not in content:
        assert time.monotonic() < end, f"{text!r} is not in {log.name}:\n{content[-3000:]}"
        time.sleep(0.2)
        content = log.read_text("utf-8", "replace")


def _write_images(machine: Machine) -> None:
    """Write 16 random images for each site."""
    random = np.random.default_rng(0)
    for site in SITES:
        scans = machine.root / "data" / site / "scans"
        scans.mkdir(parents=True)
        for i in range(16):
            pixels = random.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(scans / f"{i}.png")


def _write_experiment(machine: Machine) -> None:
    """Write the experiment of the guide with smaller numbers."""
    experiment = _block("rounds = 100")
    for large, small in SMALLER.items():
        assert large in experiment
        experiment = experiment.replace(large, small)
    (machine.root / "mine.toml").write_text(experiment)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_guide_works_on_loopback(machine: Machine) -> None:
    """From the experiment to the end of a run on three sites; every command is the guide's."""
    _write_images(machine)
    _write_experiment(machine)
    machine.shell(machine.here(_block("fedssl flower init")))
    machine.shell(machine.here(_block("openssl req")))
    machine.unit("superlink", machine.here(_unit("flower-superlink")))
    _wait_for_text(machine.root / "superlink.log", "Uvicorn running on", 120)
    (machine.root / "home/.flwr").mkdir(exist_ok=True)
    (machine.root / "home/.flwr/config.toml").write_text(machine.here(_block("[superlink.")))
    for site in SITES:
        machine.shell(machine.here(_block("ssh-keygen"), site))
        output = machine.shell(machine.here(_block("flwr supernode register"), site))
        assert "registered successfully" in output
    link = f"127.0.0.1:{machine.ports['8802']}"
    with fleet_only(link, machine.root, int(machine.ports["8801"]), authority="ca.crt"):
        for site in SITES:
            # On separate machines, all SuperNodes may have the same local port.
            command = machine.here(_unit("flower-supernode"), site)
            machine.unit(site, f"{command} --port {free_port()}")
        machine.shell(machine.here(_block("flwr run")), timeout=600)
    run = machine.root / "home/fedssl-runs/mine"
    lines = list(read_rounds(run / "rounds.jsonl"))
    assert len(lines) == 2
    for line in lines:
        assert [client["client"] for client in line["clients"]] == list(SITES)
        assert [client["dropped"] for client in line["clients"]] == [None] * 3
    assert (run / "backbone.safetensors").is_file()
