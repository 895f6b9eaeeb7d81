"""Where what clients remember lies between their turns: on the device, in host memory, or in a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fedssl.core.devices.free_memory import free_host_memory, free_on_device
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, Value

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
        if needed <= MARGIN * free_on_device(device):
            return "device"
        needed = (
            VERSIONS * clients * (1 << (size - 1).bit_length())
        )  # torch pins blocks of powers of two
    return "host" if needed <= MARGIN * free_host_memory() else "disk"


def on_device(tree: Tree, device: torch.device) -> Tree:
    """The tree on a device; from pinned memory the copy is in the current stream's order and holds up nobody."""

    def placed(tensor: Tensor) -> Tensor:
        there = tensor.to(device, non_blocking=True)
        if device.type == "cuda":
            # It may be another stream's: its memory is not to be used again before this one has done.
            there.record_stream(torch.cuda.current_stream(device))
        return there

    return _mapped(tree, placed)


def on_host(tree: Tree) -> Tree:
    """The tree in host memory: pinned, and perhaps still on its way, if it comes from a CUDA device."""

    def copied(tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu":
            return tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
            tensor, non_blocking=True
        )

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
