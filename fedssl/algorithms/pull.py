"""A proximal term: how far the weights being trained are from given ones."""

from __future__ import annotations

import torch
from torch import Tensor

from fedssl.layout import PARAMETERS
from fedssl.method import Given, Method
from fedssl.tree import State

PREFIX = "reference."


def reference(method: Method, state: State) -> Given:
    """The parameters in `state` that are trained, as tensors of `given`."""
    trained = state.layout.pick(method.online, PARAMETERS)
    return {PREFIX + name: tensor for name, tensor in state.restricted(trained).tensors().items()}


def pull(method: Method, given: Given) -> Tensor:
    """‖w − w_reference‖² over the parameters given."""
    weights = dict(method.named_parameters())
    names = [name.removeprefix(PREFIX) for name in given if name.startswith(PREFIX)]
    apart = torch._foreach_sub([weights[n] for n in names], [given[PREFIX + n] for n in names])
    return torch.stack([d.square().sum() for d in apart]).sum()
