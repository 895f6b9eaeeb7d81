"""How much memory is free: on a CUDA device, and in this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch


def free_on_device(device: torch.device) -> int:
    """Bytes nobody uses, those that torch keeps for later included."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + kept)


def free_host_memory() -> int:
    """Bytes a process may still take: what the kernel calls available, or less in a container that is limited."""
    name = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    free = os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    information = Path("/proc/meminfo")
    if information.is_file():  # the kernel would drop caches first, so that more is available than free
        found = re.search(r"^MemAvailable:\s+(\d+) kB", information.read_text("utf-8"), re.MULTILINE)
        free = 1024 * int(found[1]) if found else free
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and (most := limit.read_text("utf-8").strip()) != "max":
        free = min(free, int(most) - int(used.read_text("utf-8")))
    return max(0, free)
