"""Flower's own programs, started and ended: a SuperLink and SuperNodes on this machine, with TLS and known keys."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import tomli_w

from fedssl.errors import RunError
from fedssl.runtimes.flower import only
from fedssl.runtimes.flower.keys import HOST, make_certificates, make_node_key
from fedssl.runtimes.flower.kin import GRACE, descendants, end_all_of, send
from fedssl.runtimes.flower.switches import without_proxies

CONNECTION = "here"  # what the SuperLink is called in Flower's configuration
PATIENCE = 60.0  # seconds for the SuperLink to come up; a busy machine takes its time
# Becomes a program that the kernel ends when this process has ended, also when it was killed; Linux only.
BOUND = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Processes:
    """Everything that was started, each with a log of its own, in a session of its own (a Ctrl-C is ours to pass on);
    all of it is ended together, with whatever it has started. It ends, too, if the thread that started it does."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.programs: Path | None = None  # first on the PATH, if there is an app that alone may be run
        self.home.mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
        make_certificates(folder / "keys")
        self.ca = folder / "keys" / "ca.crt"

    def only(self, app: Path) -> None:
        """What is started from now on runs this app and no other."""
        self.programs = only.write_programs(self.folder / "bin", only.fingerprint(app))

    def environment(self) -> dict[str, str]:
        mine = {"FLWR_HOME": str(self.home), "PYTHONUNBUFFERED": "1"}
        return only.environment(self.programs, without_proxies(os.environ)) | mine

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [*_bound(), _program(command[0]), *command[1:]],
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

    def superlink(self) -> str:
        """Start one; its address, once it answers."""
        port, keys = str(free_port()), self.folder / "keys"
        address = f"{HOST}:{port}"
        files = ("--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key")
        tls = [str(keys / word) if not word.startswith("--") else word for word in files]
        where = ("--host", HOST, "--port", port)
        self.start("superlink", "flower-superlink", *where, *tls, "--enable-supernode-auth")
        self.wait_for(address)
        connection = {"address": address, "root-certificates": str(self.ca)}
        (self.home / "config.toml").write_text(
            tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: connection}})
        )
        return address

    def wait_for(self, address: str) -> None:
        """Until the SuperLink answers there."""
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

    def supernode(self, name: str, address: str, key: Path, config: Mapping[str, str | int]) -> None:
        told = self.folder / f"{name}.toml"  # a file: no quote in a path can be in the way
        told.write_text(tomli_w.dumps(config))
        trust = ("--root-certificates", str(self.ca), "--auth-supernode-private-key", str(key))
        where = ("--superlink", address, "--host", HOST, "--port", str(free_port()))
        self.start(name, "flower-supernode", *where, *trust, "--node-config", str(told))

    def end(self, *names: str) -> None:
        """End some, and all they have started: asked first, then not."""
        ending = {name: self.running.pop(name) for name in names if name in self.running}
        family = {process.pid: descendants(process.pid) for process in ending.values()}
        for process in ending.values():  # all are asked before the first is waited for
            send(process.pid, signal.SIGTERM)
        end = time.monotonic() + GRACE
        for process in ending.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
        for parent, children in family.items():
            for pid in {parent, *children, *descendants(parent)}:  # some are in sessions of their own, some are new
                send(pid, signal.SIGKILL)
        for process in ending.values():
            process.wait()

    def end_all(self) -> None:
        self.end(*self.running)
        end_all_of(self.home)

    def fallen(self) -> str | None:
        """The name of a process that has ended though nobody has ended it."""
        return next((name for name, process in self.running.items() if process.poll() is not None), None)


@contextlib.contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    started = Processes(folder)
    try:
        yield started
    finally:
        started.end_all()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _bound() -> list[str]:
    return [sys.executable, "-I", "-S", "-c", BOUND, str(os.getpid())] if sys.platform == "linux" else []


def _program(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise RunError(f"{name} is not there, neither beside {sys.executable} nor on the PATH")
    return found
