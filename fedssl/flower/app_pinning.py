"""Pin a SuperLink or a SuperNode to one app.

Flower's control API does not authenticate its callers: anyone who can reach it may submit an app,
which is Python code, to be run on the server and on every node. An app cannot protect a node from
another app, but the way Flower's processes are started can: they look up `flwr-serverapp` and
`flwr-clientapp` on the PATH. The wrapper programs written here come before Flower's own on the PATH
and compare an app's SHA-256 with the pinned one before any of it is unpacked or imported.
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

from fedssl.core.errors import ConfigError
from fedssl.flower.telemetry import TELEMETRY_OFF, proxy_exemptions

PINNABLE = ("flower-superlink", "flower-supernode")
CHECKED = {  # program that runs an app -> the module that does the work, and its entry point
    "flwr-serverapp": (
        "flwr.superlink.runtime.run_serverapp",
        "flwr.superlink.cli",
        "flwr_serverapp",
    ),
    "flwr-clientapp": (
        "flwr.supernode.runtime.run_clientapp",
        "flwr.supernode.cli",
        "flwr_clientapp",
    ),
}


def app_sha256(app: Path) -> str:
    """Return the SHA-256 of an app as `flwr run` submits it."""
    import click
    from flwr.cli.build import build_fab_from_disk

    if not (app / "pyproject.toml").is_file():
        raise ConfigError(f"{app} is not the folder of an app: it has no pyproject.toml")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # raised by Flower
        try:
            return _sha256(build_fab_from_disk(app))
        except click.ClickException as problem:
            raise ConfigError(f"Flower cannot build the app in {app}: {problem.message}") from None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_wrappers(folder: Path, pinned: str) -> Path:
    """Write wrappers of Flower's programs that run only the app with SHA-256 `pinned`.

    Return the folder, which must come first on the PATH of a SuperLink or a SuperNode.
    """
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in {*TASK_TYPE_TO_COMMAND.values(), *CHECKED}:
        command = [sys.executable, "-P", "-m", "fedssl.flower.app_pinning", name, pinned]
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        path.chmod(0o700)
    return folder


def flower_environment(wrappers: Path | None, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Flower process.

    The PATH starts with `wrappers`, followed by Flower's own programs; telemetry is off; loopback
    addresses are exempt from proxies.
    """
    path = [str(Path(sys.executable).parent), base.get("PATH", os.defpath)]
    if wrappers is not None:
        path.insert(0, str(wrappers))
    return {**base, **TELEMETRY_OFF, **proxy_exemptions(base), "PATH": os.pathsep.join(path)}


def start_pinned(app: Path, command: list[str]) -> None:
    """Replace this process by one of Flower's programs, which then runs only this app."""
    if not command or command[0] not in PINNABLE:
        raise ConfigError(f"the command must be {' or '.join(PINNABLE)}, with its options")
    pinned = app_sha256(app)
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    wrappers = write_wrappers(home / "fedssl-only" / pinned[:16], pinned)
    print(
        f"{command[0]} runs the app with SHA-256 {pinned}, and no other",
        file=sys.stderr,
        flush=True,
    )
    # Flower's programs only, no shell.
    os.execvpe(command[0], command, flower_environment(wrappers, os.environ))  # nosec B606


def pin_module(module: Any, pinned: str) -> None:
    """Patch one of Flower's modules so that it unpacks only the app with SHA-256 `pinned`.

    Flower looks up apps that were unpacked before by the hash that comes with them. The hash is
    therefore replaced by that of the received bytes.
    """
    # If Flower has renamed these functions, this raises and no app is run.
    install_from_fab = module.install_from_fab
    fab_from_proto = module.fab_from_proto

    def read_checked(message: Any) -> Any:
        fab = fab_from_proto(message)
        fab.hash_str = _sha256(fab.content)
        return fab

    def install_checked(content: bytes, *args: Any, **kwargs: Any) -> Any:
        received = _sha256(content)
        if received != pinned:
            raise PermissionError(
                f"only the app with SHA-256 {pinned} is run here; this one has {received}"
            )
        return install_from_fab(content, *args, **kwargs)

    module.fab_from_proto = read_checked
    module.install_from_fab = install_checked


def main() -> None:
    """Run one of Flower's programs, pinned: `app_pinning PROGRAM SHA256 OPTIONS...`."""
    program, pinned = sys.argv[1:3]
    if program not in CHECKED:
        sys.exit(f"{program} is not run here: only the app with SHA-256 {pinned} is")
    worker, package, entry_point = CHECKED[program]
    pin_module(import_module(worker), pinned)
    sys.argv = [program, *sys.argv[3:]]
    getattr(import_module(package), entry_point)()


if __name__ == "__main__":
    main()
