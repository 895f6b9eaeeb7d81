"""Which processes belong together: by who has started whom, and by the FLWR_HOME that all of a federation have."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

GRACE = 5.0  # seconds to end in


def descendants(pid: int) -> list[int]:
    """All that a process has started, and they in turn."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found, waiting = [], [pid]
    while waiting:
        new = children.get(waiting.pop(), [])
        found += new
        waiting += new
    return found


def _parents() -> Iterator[tuple[int, int]]:
    """Every process and its parent, from the kernel or else from `ps`; nothing where there is neither."""
    if Path("/proc/self/stat").is_file():
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name is in brackets and may have anything in it; the state and the parent follow.
                yield int(stat.parent.name), int(stat.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
        return
    with contextlib.suppress(OSError):
        table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
        for line in table.splitlines():
            child, parent = map(int, line.split())
            yield child, parent


def all_of(home: Path) -> list[int]:
    """The processes of the federation with this FLWR_HOME, also those whose parents are gone; Linux only."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"FLWR_HOME={home}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return [pid for pid in found if pid != os.getpid()]


def end_all_of(home: Path) -> None:
    """End what is left of a federation, as one whose `fedssl flower up` was killed."""
    end = time.monotonic() + GRACE
    while (left := all_of(home)) and time.monotonic() < end:
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.05)


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
