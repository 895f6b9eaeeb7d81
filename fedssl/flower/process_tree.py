"""Find processes that belong together: by their parents, or by the FLWR_HOME of a federation."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

GRACE = 5.0  # seconds for a process to end


def descendants(pid: int) -> list[psutil.Process]:
    """Return the children of a process, their children, and so on."""
    with suppress(psutil.NoSuchProcess):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def federation_processes(home: Path) -> list[psutil.Process]:
    """Return the processes of this user with this FLWR_HOME, including orphans."""
    processes: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get("FLWR_HOME") == str(home):
                processes.append(process)
    return [process for process in processes if process.pid != os.getpid()]


def kill_federation(home: Path) -> None:
    """Kill the processes of a federation, such as those of a killed `fedssl flower up`."""
    end = time.monotonic() + GRACE
    while True:
        remaining = federation_processes(home)
        if not remaining or time.monotonic() >= end:
            return
        for process in remaining:
            kill(process)
        time.sleep(0.05)


def kill(process: psutil.Process) -> None:
    """Kill a process, if it still exists and belongs to this user."""
    with suppress(psutil.Error):
        process.kill()
