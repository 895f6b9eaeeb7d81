"""Flower's own programs, started and ended: a SuperLink and SuperNodes on this machine, with TLS and known keys."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedssl.errors import RunError
from fedssl.runtimes.flower.keys import HOST, make_certificates, make_node_key

# Nothing is fetched from, or told to, anybody: said in the log of `fedssl flower up`, and in every app's README.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
CONNECTION = "here"  # what the SuperLink is called in Flower's configuration
PATIENCE = 60.0  # seconds for the SuperLink to come up; a busy machine takes its time
GRACE = 5.0  # seconds to end in


class Processes:
    """Everything that was started, each with a log of its own, in a session of its own (a Ctrl-C is ours to pass on);
    all of it is ended together, with whatever it has started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.home.mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
        make_certificates(folder / "keys")
        self.ca = folder / "keys" / "ca.crt"

    def environment(self) -> dict[str, str]:
        bin = str(Path(sys.executable).parent)  # Flower looks for its own programs there
        path = os.pathsep.join([bin, os.environ.get("PATH", "")])
        return {**os.environ, **QUIET, "FLWR_HOME": str(self.home), "PATH": path, "PYTHONUNBUFFERED": "1"}

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [_program(command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.environment(),
                start_new_session=True,
            )
        self.running[name] = process
        return process

    def call(self, name: str, *command: str, timeout: float = PATIENCE) -> None:
        """Run to its end; a RunError with its last words if that is not a good one."""
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.start(name, *command).wait(timeout)
        self.end(name)
        if code != 0:
            raise RunError(f"{' '.join(command[:3])} failed:\n{self.last_words(name)}")

    def last_words(self, name: str, lines: int = 15) -> str:
        return "\n".join(self.log(name).read_text("utf-8", "replace").splitlines()[-lines:])

    def superlink(self, *more: str) -> str:
        """Start one; its address, once it answers."""
        self.port, keys = free_port(), self.folder / "keys"
        address = f"{HOST}:{self.port}"
        files = ("--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key")
        tls = [str(keys / word) if not word.startswith("--") else word for word in files]
        where = ("--host", HOST, "--port", str(self.port))
        self.start("superlink", "flower-superlink", *where, *tls, "--enable-supernode-auth", *more)
        self._wait_for(address)
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        text += f'address = "{address}"\nroot-certificates = "{self.ca}"\n'
        (self.home / "config.toml").write_text(text)
        return address

    def _wait_for(self, address: str) -> None:
        context = ssl.create_default_context(cafile=str(self.ca))
        host, port = address.split(":")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.running["superlink"].poll() is None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection((host, int(port)), timeout=2) as plain,
                context.wrap_socket(plain, server_hostname=host),
            ):
                return
            time.sleep(0.2)
        raise RunError(f"the SuperLink did not come up:\n{self.last_words('superlink')}")

    def register(self, name: str) -> Path:
        """Make a key for a node and have the SuperLink know it."""
        key = self.folder / "keys" / name
        self.call(f"register-{name}", "flwr", "supernode", "register", str(make_node_key(key)), CONNECTION)
        return key

    def supernode(self, name: str, address: str, key: Path, config: Mapping[str, str]) -> None:
        words = " ".join(f"{key}='{value}'" for key, value in config.items())
        trust = ("--root-certificates", str(self.ca), "--auth-supernode-private-key", str(key))
        where = ("--superlink", address, "--host", HOST, "--port", str(free_port()))
        self.start(name, "flower-supernode", *where, *trust, "--node-config", words)

    def end(self, *names: str) -> None:
        """End some, and all they have started: asked first, then not."""
        ending = {name: self.running.pop(name) for name in names if name in self.running}
        family = {process.pid: descendants(process.pid) for process in ending.values()}
        for process in ending.values():  # all are asked before the first is waited for
            _signal(process.pid, signal.SIGTERM)
        end = time.monotonic() + GRACE
        for process in ending.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
        for pid in [pid for parent, children in family.items() for pid in (parent, *children)]:
            _signal(pid, signal.SIGKILL)  # some are in sessions of their own
        for process in ending.values():
            process.wait()

    def end_all(self) -> None:
        self.end(*self.running)


@contextlib.contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    started = Processes(folder)
    try:
        yield started
    finally:
        started.end_all()


def descendants(pid: int) -> list[int]:
    """All that a process has started, and they in turn."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in table.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found, waiting = [], [pid]
    while waiting:
        new = children.get(waiting.pop(), [])
        found += new
        waiting += new
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _program(name: str) -> str:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.is_file() else name
