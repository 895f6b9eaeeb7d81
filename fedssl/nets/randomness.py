"""Switch off layers that draw random numbers in training.

A training step receives its random numbers as inputs, so that a resumed run has the same bits: a
layer must not draw its own from the state that all of a process shares.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

# Attributes in which layers of torch, torchvision and timm store a rate. A layer that is not of
# torch is recognized by the name of its class, because its library is optional.
_RATES = ("drop_prob", "drop_rate", "prob", "p")
_LAYERS = (
    "DropPath",
    "DropBlock2d",
    "PatchDropout",
    "PatchDropoutWithIndices",
    "StochasticDepth",
)


def disable_randomness(module: nn.Module) -> list[str]:
    """Set the rates of dropout, drop path and the like inside a module to 0.

    Return the names of the layers whose rate was above 0.
    """
    changed = []
    for name, layer in module.named_modules():
        for attribute in _rates(layer):
            if getattr(layer, attribute):
                setattr(layer, attribute, 0.0)
                changed.append(name)
    return changed


def _rates(layer: nn.Module) -> list[str]:
    """Return the attributes of a layer that are rates of dropping."""
    if isinstance(layer, _DropoutNd):
        return ["p"]
    if isinstance(layer, nn.MultiheadAttention):
        return ["dropout"]
    names = _RATES if type(layer).__name__ in _LAYERS else _RATES[:2]
    return [name for name in names if isinstance(getattr(layer, name, None), float)]
