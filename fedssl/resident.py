"""Resident models: a module's parameters and buffers as views of two flat rows.

Loading, saving, averaging and the optimizer's update are then single operations, clients swap in and out by copies in
place, and nothing is ever deep-copied.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fedssl.layout import Entry, Layout, Role
from fedssl.tree import State


def settle(module: nn.Module, device: torch.device | str) -> State:
    """Move a module's state into a new State; the module keeps views of its rows."""
    module.to(device)
    layout = Layout.of(_entries(module))
    state = State.empty(layout, device)
    tensors = module.state_dict(keep_vars=True)
    for entry in layout.entries:
        view = state.view(entry)
        view.copy_(tensors[entry.name].detach())
        owner, leaf = _owner(module, entry.name)
        parameter = owner._parameters.get(leaf)
        if parameter is not None:
            parameter.data = view
        else:
            owner._buffers[leaf] = view
    return state


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


def _entries(module: nn.Module) -> Iterator[Entry]:
    """The state_dict's tensors with their roles; a norm layer's parameters and statistics are told apart by type."""
    for name, tensor in module.state_dict(keep_vars=True).items():
        owner, _ = _owner(module, name)
        norm = isinstance(owner, _NormBase | nn.LayerNorm | nn.GroupNorm)
        role: Role
        if not tensor.is_floating_point():
            role = "counter"
        elif isinstance(tensor, nn.Parameter):
            role = "norm" if norm else "weight"
        else:
            role = "statistic" if norm else "buffer"
        yield Entry(name, tuple(tensor.shape), role)
