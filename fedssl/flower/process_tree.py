"""Find processes that belong together: by their parents, or by the FLWR_HOME of a federation."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

GRACE = 5.0  # seconds for a process to end


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    pids: list[int] = []
    unvisited = [pid]
    while unvisited:
        new = children.get(unvisited.pop(), [])
        pids += new
        unvisited += new
    return pids


def _parents() -> Iterator[tuple[int, int]]:
    """Yield every process with its parent, from /proc or `ps`; nothing where neither exists."""
    if Path("/proc/self/stat").is_file():
        return _parents_from_proc()
    return _parents_from_ps()


def _parents_from_proc() -> Iterator[tuple[int, int]]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name is in brackets and may contain anything; the state and the parent follow.
            fields = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
            yield int(stat.parent.name), int(fields[1])


def _parents_from_ps() -> Iterator[tuple[int, int]]:
    command = ["ps", "-A", "-o", "pid=,ppid="]
    with contextlib.suppress(OSError):
        table = subprocess.run(command, capture_output=True, text=True).stdout
        for line in table.splitlines():
            child, parent = map(int, line.split())
            yield child, parent


def federation_processes(home: Path) -> list[int]:
    """Return the processes with this FLWR_HOME, including orphans; Linux only."""
    variable = f"FLWR_HOME={home}".encode()
    pids: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable in (process / "environ").read_bytes().split(b"\0"):
                pids.append(int(process.name))
    return [pid for pid in pids if pid != os.getpid()]


def kill_federation(home: Path) -> None:
    """Kill the processes of a federation, such as those of a killed `fedssl flower up`."""
    end = time.monotonic() + GRACE
    while True:
        remaining = federation_processes(home)
        if not remaining or time.monotonic() >= end:
            return
        for pid in remaining:
            send_signal(pid, signal.SIGKILL)
        time.sleep(0.05)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, if it exists and belongs to this user."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
