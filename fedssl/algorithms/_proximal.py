"""A proximal term: the squared distance of the trained weights from reference weights."""

from __future__ import annotations

import torch
from torch import Tensor

from fedssl.core.state.layout import PARAMETERS
from fedssl.core.state.state import State
from fedssl.method import Constants, Method

PREFIX = "reference."


def trained_parameters(method: Method, state: State) -> Constants:
    """Return the parameters in `state` that are trained, as tensors of `constants`."""
    trained = state.layout.pick(method.online, PARAMETERS)
    tensors = state.restricted(trained).tensors()
    return {PREFIX + name: tensor for name, tensor in tensors.items()}


def pull(method: Method, constants: Constants) -> Tensor:
    """Return ‖w − w_reference‖² over the parameters given, 0-d."""
    weights = dict(method.named_parameters())
    names = [name.removeprefix(PREFIX) for name in constants if name.startswith(PREFIX)]
    trained: list[Tensor] = [weights[name] for name in names]
    fixed = [constants[PREFIX + name] for name in names]
    differences = torch._foreach_sub(trained, fixed)
    return torch.stack([d.square().sum() for d in differences]).sum()
