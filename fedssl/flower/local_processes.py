"""Start and stop a SuperLink and SuperNodes on this machine, with TLS and registered keys."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import tomli_w

from fedssl.core.console import HIDE_NAMES
from fedssl.core.errors import RunError
from fedssl.flower import app_pinning
from fedssl.flower.certificates import HOST, make_certificate, make_node_key
from fedssl.flower.process_tree import GRACE, descendants, kill, kill_federation
from fedssl.flower.telemetry import without_proxies

CONNECTION = "here"  # name of the SuperLink in Flower's configuration
STARTUP_TIMEOUT = 60.0  # seconds for the SuperLink to start on a busy machine
# A program that the kernel kills when this process ends, even if it was killed; Linux only.
DIE_WITH_PARENT = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Processes:
    """The processes of a local federation, each with its own log.

    Each process has its own session, so that a Ctrl-C reaches only this process. All of them are
    stopped together, with their descendants. They also end when the thread that started them ends.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._wrappers: Path | None = None  # first on the PATH, if an app is pinned
        self.home.mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
        make_certificate(folder / "keys")
        self.certificate = folder / "keys" / "server.pem"

    def pin_app(self, app: Path) -> None:
        """Let processes that are started from now on run only this app."""
        pinned = app_pinning.app_sha256(app)
        self._wrappers = app_pinning.write_wrappers(self.folder / "bin", pinned)

    def environment(self) -> dict[str, str]:
        """Return the environment of the processes."""
        base = without_proxies(os.environ)
        environment = app_pinning.flower_environment(self._wrappers, base)
        environment["FLWR_HOME"] = str(self.home)
        environment["PYTHONUNBUFFERED"] = "1"
        environment[HIDE_NAMES] = "1"
        return environment

    def log(self, name: str) -> Path:
        """Return the path of a process's log."""
        return self.folder / "logs" / f"{name}.log"

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a program under a name."""
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(  # nosec B603 # Flower's programs, no shell
                [*_die_with_parent(), _find_program(command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.environment(),
                start_new_session=True,
            )
        self.running[name] = process
        return process

    def run(self, name: str, *command: str, timeout: float = STARTUP_TIMEOUT) -> None:
        """Run a program to its end; raises RunError with the end of its log if it fails."""
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.start(name, *command).wait(timeout)
        self.stop(name)
        if code != 0:
            raise RunError(f"{' '.join(command[:3])} failed:\n{self.log_tail(name)}")

    def log_tail(self, name: str, lines: int = 15) -> str:
        """Return the last lines of a process's log."""
        text = self.log(name).read_text("utf-8", "replace")
        return "\n".join(text.splitlines()[-lines:])

    def start_superlink(self) -> str:
        """Start a SuperLink, wait until it answers, and return its address."""
        port = str(free_port())
        address = f"{HOST}:{port}"
        endpoint = ("--host", HOST, "--port", port)
        tls = (
            *("--ssl-ca-certfile", str(self.certificate)),
            *("--ssl-certfile", str(self.certificate)),
            *("--ssl-keyfile", str(self.certificate.with_suffix(".key"))),
        )
        self.start("superlink", "flower-superlink", *endpoint, *tls, "--enable-supernode-auth")
        self.wait_for_superlink(address)
        connection = {"address": address, "root-certificates": str(self.certificate)}
        config = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (self.home / "config.toml").write_text(tomli_w.dumps(config))
        return address

    def wait_for_superlink(self, address: str) -> None:
        """Wait until the SuperLink answers at an address; raises RunError if it does not."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        host, port = address.split(":")
        end = time.monotonic() + STARTUP_TIMEOUT
        while time.monotonic() < end and self.running["superlink"].poll() is None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection((host, int(port)), timeout=2) as connection,
                context.wrap_socket(connection, server_hostname=host),
            ):
                return
            time.sleep(0.2)
        raise RunError(f"the SuperLink did not start:\n{self.log_tail('superlink')}")

    def register(self, name: str) -> Path:
        """Make a key for a node, register it with the SuperLink, and return its path."""
        key = self.folder / "keys" / name
        public = str(make_node_key(key))
        self.run(f"register-{name}", "flwr", "supernode", "register", public, CONNECTION)
        return key

    def start_supernode(
        self, name: str, address: str, key: Path, config: Mapping[str, str | int]
    ) -> None:
        """Start a SuperNode with a key and a node configuration."""
        config_file = self.folder / f"{name}.toml"  # a file, because paths may contain quotes
        config_file.write_text(tomli_w.dumps(config))
        trust = (
            *("--root-certificates", str(self.certificate)),
            *("--auth-supernode-private-key", str(key)),
        )
        endpoints = ("--superlink", address, "--host", HOST, "--port", str(free_port()))
        node_config = ("--node-config", str(config_file))
        self.start(name, "flower-supernode", *endpoints, *trust, *node_config)

    def stop(self, *names: str) -> None:
        """Stop processes and their descendants: SIGTERM first, then SIGKILL."""
        stopping = [self.running.pop(name) for name in names if name in self.running]
        family = []
        for process in stopping:  # all get the signal before the first is waited for
            family += descendants(process.pid)
            process.terminate()
        end = time.monotonic() + GRACE
        for process in stopping:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
        for process in stopping:
            family += descendants(process.pid)  # some are new
            process.kill()
        for child in family:  # some have their own sessions
            kill(child)
        for process in stopping:
            process.wait()

    def stop_all(self) -> None:
        """Stop all processes of the federation."""
        self.stop(*self.running)
        kill_federation(self.home)

    def first_exited(self) -> str | None:
        """Return the name of a process that has ended without being stopped; None if all run."""
        for name, process in self.running.items():
            if process.poll() is not None:
                return name
        return None


@contextlib.contextmanager
def local_processes(folder: Path) -> Iterator[Processes]:
    """Yield the processes of a local federation, and stop them at the end."""
    processes = Processes(folder)
    try:
        yield processes
    finally:
        processes.stop_all()


def free_port() -> int:
    """Return a free port on the loopback address."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> list[str]:
    """Return the command that a program is started with, so that it ends with this process."""
    if sys.platform != "linux":
        return []
    return [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid())]


def _find_program(name: str) -> str:
    """Return the path of a program in the folder of this Python, or else on the PATH."""
    installed = Path(sys.executable).parent / name
    if installed.is_file():
        return str(installed)
    path = shutil.which(name)
    if path is None:
        raise RunError(f"{name} is neither in {installed.parent} nor on the PATH")
    return path
