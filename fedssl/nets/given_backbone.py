"""Backbones that are passed from Python: a module, or a function without arguments that makes one.

An experiment names such a backbone `given:CLASS-DIGEST`, where the digest is that of its layers, so
that a run cannot be resumed with another one. The module itself stays in this process.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedssl.core.errors import ConfigError
from fedssl.nets.adopted import adopt
from fedssl.nets.backbone import Backbone

GIVEN = "given"
_ADDRESS = re.compile(r"0x[0-9a-f]+")  # of a function, in the text of a module


class _Given(NamedTuple):
    make: Callable[[], nn.Module]
    dim: int  # width of the features
    weights: str | None  # SHA-256 of the weights of a module; None: drawn for each run


_given: dict[str, _Given] = {}


def give_backbone(backbone: Any) -> str:
    """Return the name, for `method.backbone`, of a module or of a function that makes one.

    A function is called for each model, and its weights follow from the seed of the run. A module
    is copied, and each run starts from its weights. The attribute `dim` or `num_features` of a
    module is the width of its features. Text is returned as it is: it is a name already. Raise
    ConfigError for anything else.
    """
    if isinstance(backbone, str):
        return backbone
    module = _module_of(backbone)
    if any(map(is_lazy, module.parameters())):
        raise ConfigError(
            f"{type(module).__name__} has layers without shapes (torch's lazy modules): encode a "
            "batch of images once before you pass it, or state the widths of its layers"
        )
    width = _width(module)
    name = f"{type(module).__name__}-{_digest(module)}"
    if isinstance(backbone, nn.Module):
        _given[name] = _Given(lambda: module, width, _hash_weights(module))
    else:
        _given[name] = _Given(backbone, width, None)
    return f"{GIVEN}:{name}"


def _module_of(backbone: Any) -> nn.Module:
    """Return a copy of a module, or the module that a function makes."""
    if isinstance(backbone, nn.Module):
        return copy.deepcopy(backbone)
    if not callable(backbone):
        raise ConfigError(
            "backbone= must be a torch.nn.Module, a function without arguments that returns one, "
            f"or the name of a backbone (got {type(backbone).__name__})"
        )
    with torch.random.fork_rng(devices=[]):
        module = backbone()
    if not isinstance(module, nn.Module):
        raise ConfigError(
            "backbone= must be a torch.nn.Module, or a function without arguments that returns "
            f"one (it returned {type(module).__name__})"
        )
    return module


def build_given(name: str, channels: int) -> Backbone:
    """Return a backbone that was passed from Python; `name` is what follows `given:`."""
    made = _find(name)
    try:
        module = made.make()
    except Exception:
        if torch.get_default_device().type != "meta":
            raise
        with torch.device("cpu"):  # its constructor needs the values of tensors
            module = made.make()
    module = copy.deepcopy(module)  # a function may return the same module again
    if isinstance(module, Backbone):
        return adopt(module, f"{GIVEN}:{name}", {})
    return adopt(module, f"{GIVEN}:{name}", {"dim": made.dim, "channels": channels})


def given_weights(backbone: str) -> str | None:
    """Return the SHA-256 of the first weights of `method.backbone`, if it is a module."""
    family, _, name = backbone.partition(":")
    if family != GIVEN:
        return None
    return _find(name).weights


def _find(name: str) -> _Given:
    if name not in _given:
        raise ConfigError(
            f'the backbone "{name}" was passed from Python and is not known in this process: pass '
            "backbone= to fedssl.run or fedssl.Run, with the same layers. For the command line and "
            "Flower, register a class with @BACKBONES.register and pass --import FILE"
        )
    return _given[name]


def _width(module: nn.Module) -> int:
    """Return the width of a module's features."""
    for attribute in ("dim", "num_features"):
        width = getattr(module, attribute, None)
        if isinstance(width, int) and not isinstance(width, bool) and width > 0:
            return width
    raise ConfigError(
        f"the width of the features of {type(module).__name__} is unknown: set its attribute "
        "`dim`, e.g. module.dim = 512"
    )


def _digest(module: nn.Module) -> str:
    """Return a hash of the layers of a module, and of the names and shapes of its tensors."""
    lines = [_ADDRESS.sub("", str(module))]
    for key, tensor in module.state_dict().items():
        lines.append(f"{key} {tuple(tensor.shape)} {tensor.dtype}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _hash_weights(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for key, tensor in module.state_dict().items():
        digest.update(key.encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
