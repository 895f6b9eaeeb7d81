"""Free memory, on a CUDA device and in this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USED = Path("/sys/fs/cgroup/memory.current")


def free_on_device(device: torch.device) -> int:
    """Return the free bytes of a CUDA device, including those that torch's allocator caches."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + cached)


def free_host_memory() -> int:
    """Return the bytes that a process may still allocate: those that the kernel calls available, or
    less in a container with a limit."""
    free = _available_memory()
    if _CGROUP_LIMIT.is_file():
        limit = _CGROUP_LIMIT.read_text("utf-8").strip()
        if limit != "max":
            free = min(free, int(limit) - int(_CGROUP_USED.read_text("utf-8")))
    return max(0, free)


def _available_memory() -> int:
    """Return the bytes that the kernel calls available: it drops caches first, so they are more
    than those that are free."""
    if _MEMINFO.is_file():
        match = re.search(
            r"^MemAvailable:\s+(\d+) kB", _MEMINFO.read_text("utf-8"), flags=re.MULTILINE
        )
        if match:
            return 1024 * int(match[1])
    name = "SC_AVPHYS_PAGES"
    if name not in os.sysconf_names:
        name = "SC_PHYS_PAGES"
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
