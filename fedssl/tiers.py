"""Where what clients remember lies between their turns: on the device, in host memory, or in a file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedssl.tree import State, Tree, Value

Tier = Literal["device", "host", "disk"]
Wanted = Literal["auto", "device", "host", "disk"]
VERSIONS = 3  # of a client's memory at once: the newest, the last finished round's, and one that is being saved
MARGIN = 0.5  # of what is free; the rest is for training, and for others on the machine


def choose(wanted: Wanted, device: torch.device, size: int, clients: int) -> Tier:
    """The first tier with room for all clients' memories of `size` bytes; `wanted` if it is not "auto"."""
    if wanted != "auto":
        return wanted
    needed = VERSIONS * clients * size
    if device.type == "cuda":
        if needed <= MARGIN * torch.cuda.mem_get_info(device)[0]:
            return "device"
        needed = VERSIONS * clients * (1 << (size - 1).bit_length())  # torch pins blocks of powers of two
    return "host" if needed <= MARGIN * free_host_memory() else "disk"


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


def on_device(tree: Tree, device: torch.device) -> Tree:
    """The tree on a device; from pinned memory the copy is in the current stream's order and holds up nobody."""

    def placed(tensor: Tensor) -> Tensor:
        there = tensor.to(device, non_blocking=True)
        if (
            device.type == "cuda"
        ):  # it may be another stream's: its memory is not to be used again before this one's end
            there.record_stream(torch.cuda.current_stream(device))
        return there

    return _mapped(tree, placed)


def on_host(tree: Tree) -> Tree:
    """The tree in host memory: pinned, and perhaps still on its way, if it comes from a CUDA device."""

    def copied(tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu":
            return tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

    return _mapped(tree, copied)


def pinned(tree: Tree) -> Tree:
    return _mapped(tree, lambda tensor: tensor.pin_memory())


def ready(tree: Tree) -> torch.cuda.Event | None:
    """An event after all that the current stream has been asked to do to a tree on CUDA; None for others."""
    for value in tree.values():
        tensor = value.floats if isinstance(value, State) else value
        if isinstance(tensor, Tensor) and tensor.device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(tensor.device))
            return event
    return None


def _mapped(tree: Tree, change: Callable[[Tensor], Tensor]) -> Tree:
    def one(value: Value) -> Value:
        if isinstance(value, State):
            return State(value.layout, change(value.floats), change(value.counts))
        return change(value) if isinstance(value, Tensor) else value

    return {key: one(value) for key, value in tree.items()}
