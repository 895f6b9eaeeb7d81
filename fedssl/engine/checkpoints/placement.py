"""Choose where client memory is stored between rounds: device, host memory or a file."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedssl.core.devices.free_memory import free_host_memory, free_on_device
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, map_tensors

Tier = Literal["device", "host", "disk"]
Wanted = Literal["auto", "device", "host", "disk"]
# Versions of a client's memory at a time: the newest, the last finished round's, one being saved.
VERSIONS = 3
MARGIN = 0.5  # of free memory; the rest is for training and for other processes


def choose(wanted: Wanted, device: torch.device, size: int, clients: int) -> Tier:
    """Return the first tier with room for all clients; `wanted` if it is not "auto"."""
    if wanted != "auto":
        return wanted
    needed = VERSIONS * clients * size
    if device.type == "cuda":
        if needed <= MARGIN * free_on_device(device):
            return "device"
        # torch pins blocks of powers of two.
        needed = VERSIONS * clients * (1 << (size - 1).bit_length())
    if needed <= MARGIN * free_host_memory():
        return "host"
    return "disk"


def on_device(tree: Tree, device: torch.device) -> Tree:
    """Return the tree on a device; a copy from pinned memory is asynchronous."""

    def placed(tensor: Tensor) -> Tensor:
        moved = tensor.to(device, non_blocking=True)
        if device.type == "cuda":
            # It may be another stream's: its memory must not be reused before this stream is done.
            moved.record_stream(torch.cuda.current_stream(device))
        return moved

    return map_tensors(tree, placed)


def on_host(tree: Tree) -> Tree:
    """Return the tree in host memory; a copy from CUDA is pinned and asynchronous."""

    def copied(tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu":
            return tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
            tensor, non_blocking=True
        )

    return map_tensors(tree, copied)


def pinned(tree: Tree) -> Tree:
    """Return the tree in pinned host memory."""
    return map_tensors(tree, lambda tensor: tensor.pin_memory())


def ready(tree: Tree) -> torch.cuda.Event | None:
    """Return an event after the current stream's work on a CUDA tree; None on other devices."""
    for value in tree.values():
        tensor = value.floats if isinstance(value, State) else value
        if isinstance(tensor, Tensor) and tensor.device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(tensor.device))
            return event
    return None
