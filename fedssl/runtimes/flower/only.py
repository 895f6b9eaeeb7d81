"""One app and no other: which code a SuperLink or a SuperNode runs is settled by who starts it.

Flower's control API asks nobody who they are, and whoever reaches it may submit an app, which is Python, to be run at
the server and at every node. An app cannot protect a node from another app. What can is how Flower's processes are
started: they look for `flwr-serverapp` and `flwr-clientapp` on the PATH. Put before Flower's own are programs here that
compare an app's SHA-256 with the one that was agreed on before anything of it is unpacked or imported.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedssl.errors import ConfigError
from fedssl.runtimes.flower.switches import QUIET, proxy_exemptions

STARTED = ("flower-superlink", "flower-supernode")
CHECKED = {  # programs that run an app: the module that does the work, and their entry point
    "flwr-serverapp": ("flwr.superlink.runtime.run_serverapp", "flwr.superlink.cli", "flwr_serverapp"),
    "flwr-clientapp": ("flwr.supernode.runtime.run_clientapp", "flwr.supernode.cli", "flwr_clientapp"),
}


def fingerprint(app: Path) -> str:
    """SHA-256 of an app as `flwr run` submits it."""
    import click
    from flwr.cli.build import build_fab_from_disk

    if not (app / "pyproject.toml").is_file():
        raise ConfigError(f"{app} is not an app's folder: there is no pyproject.toml in it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's own
        try:
            return hashlib.sha256(build_fab_from_disk(app)).hexdigest()
        except click.ClickException as problem:
            raise ConfigError(f"{app} is not an app that Flower takes: {problem.message}") from None


def write_programs(folder: Path, agreed: str) -> Path:
    """A folder with what must come first on the PATH of a SuperLink or a SuperNode."""
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in {*TASK_TYPE_TO_COMMAND.values(), *CHECKED}:
        path = folder / name
        words = shlex.join([sys.executable, "-P", "-m", "fedssl.runtimes.flower.only", name, agreed])
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        path.chmod(0o700)
    return folder


def environment(programs: Path | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Flower process.

    `programs` come first on the PATH, followed by Flower's own; telemetry is off; no proxy is used for loopback.
    """
    first = [] if programs is None else [str(programs)]
    path = [*first, str(Path(sys.executable).parent), given.get("PATH", os.defpath)]
    return {**given, **QUIET, **proxy_exemptions(given), "PATH": os.pathsep.join(path)}


def start(app: Path, command: list[str]) -> None:
    """Become a program of Flower's that runs this app and no other."""
    if not command or command[0] not in STARTED:
        raise ConfigError(f"what is started must be {' or '.join(STARTED)}, with its options")
    agreed = fingerprint(app)
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    programs = write_programs(home / "fedssl-only" / agreed[:16], agreed)
    print(f"{command[0]} runs the app with SHA-256 {agreed}, and no other", file=sys.stderr, flush=True)
    found = environment(programs, os.environ)
    os.execvpe(command[0], command, found)


def guard(module: Any, agreed: str) -> None:
    """Have a module of Flower's unpack the app that was agreed on, and no other.

    Where an app was unpacked before is looked up by the hash that comes with it: what counts is the hash of what came.
    """
    unpack, read = module.install_from_fab, module.fab_from_proto  # if Flower has changed, nothing is run at all

    def read_checked(message: Any) -> Any:
        fab = read(message)
        fab.hash_str = hashlib.sha256(fab.content).hexdigest()
        return fab

    def unpack_checked(content: bytes, *args: Any, **kwargs: Any) -> Any:
        found = hashlib.sha256(content).hexdigest()
        if found != agreed:
            raise PermissionError(f"only the app with SHA-256 {agreed} is run here; this one has {found}")
        return unpack(content, *args, **kwargs)

    module.fab_from_proto, module.install_from_fab = read_checked, unpack_checked


def main() -> None:
    name, agreed = sys.argv[1:3]
    if name not in CHECKED:
        sys.exit(f"{name} is not run here: only the app with SHA-256 {agreed} is")
    work, package, entry = CHECKED[name]
    guard(import_module(work), agreed)
    sys.argv = [name, *sys.argv[3:]]
    getattr(import_module(package), entry)()


if __name__ == "__main__":
    main()
