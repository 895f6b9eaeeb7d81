"""Resident models: a module's parameters and buffers as views of two flat rows.

Loading, saving, averaging and the optimizer's update are then single operations, clients are
swapped in and out by copies in place, and nothing is ever deep-copied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedssl.core.state.layout import PARAMETERS, Entry, Layout, Role
from fedssl.core.state.state import State


def flatten_module(module: nn.Module, device: torch.device | str) -> State:
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


class Bf16Copy:
    """A bfloat16 copy of a module's weights in one row, with which a step computes, while the
    module's float32 row is trained.

    One cast of a row replaces one cast per layer, in both directions. Normalisation layers keep
    their float32 parameters.
    """

    def __init__(self, module: nn.Module, state: State) -> None:
        layout = state.layout.pick(roles=PARAMETERS)
        self._master = state.floats[: layout.floats]  # parameters come first in a row
        self._row = self._master.detach().to(torch.bfloat16)
        views = State(layout, self._row, state.counts.new_empty(0)).tensors()
        parameters = dict(module.named_parameters())
        self.weights: dict[str, Tensor] = {}
        for entry in layout.entries:
            if entry.role == "weight":
                weight = views[entry.name]
                weight.requires_grad_(parameters[entry.name].requires_grad)
                self.weights[entry.name] = weight
        self._places = [(*_owner(module, name), weight) for name, weight in self.weights.items()]

    def refresh(self) -> None:
        """Cast the module's current row."""
        self._row.copy_(self._master)

    def slice_of(self, row: Tensor) -> Tensor:
        """Return the copy of a slice of the module's row."""
        start = row.storage_offset() - self._master.storage_offset()
        return self._row[start : start + row.numel()]

    @contextlib.contextmanager
    def substituted(self) -> Iterator[None]:
        """Let the module compute with these weights, which then receive the gradients."""
        masters = [owner._parameters[leaf] for owner, leaf, _ in self._places]
        for owner, leaf, weight in self._places:
            owner._parameters[leaf] = weight  # type: ignore[assignment]
        try:
            yield
        finally:
            for (owner, leaf, _), parameter in zip(self._places, masters, strict=True):
                owner._parameters[leaf] = parameter


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the submodule that holds a tensor, and the tensor's name in it."""
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


def _entries(module: nn.Module) -> Iterator[Entry]:
    """Yield the state_dict's tensors with their roles; those of a norm layer are recognized by the
    layer's type."""
    for name, tensor in module.state_dict(keep_vars=True).items():
        owner, _ = _owner(module, name)
        in_norm = _is_norm(owner)
        role: Role
        if not tensor.is_floating_point():
            role = "counter"
        elif isinstance(tensor, nn.Parameter):
            role = "norm" if in_norm else "weight"
        else:
            role = "statistic" if in_norm else "buffer"
        yield Entry(name, tuple(tensor.shape), role)


def _is_norm(layer: nn.Module) -> bool:
    """True for a normalisation layer of torch or, by the attribute that it shares, of timm."""
    if isinstance(layer, _NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm):
        return True
    return hasattr(layer, "normalized_shape")
