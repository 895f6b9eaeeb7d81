"""Use a module of another library, or of a user, as a backbone without renaming its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import new_class
from typing import Any, cast

import torch
from torch import nn

from fedssl.core.errors import ConfigError
from fedssl.nets.backbone import Backbone
from fedssl.nets.converted_norm import convert_norms
from fedssl.nets.randomness import disable_randomness


class AdoptedBackbone(Backbone):
    """A module that was not written as a backbone, with the attributes that a backbone has.

    `adopt` makes a module an instance of a class below both its own class and this one. A wrapper
    around the module would put a prefix before the names of its tensors.
    """

    channels: int = 3  # of its images; set by `adopt`


def prepare(module: nn.Module) -> None:
    """Convert norm layers, and switch off layers that draw random numbers, in place."""
    convert_norms(module)
    disable_randomness(module)


def adopt(
    module: nn.Module,
    label: str,
    attributes: Mapping[str, Any],
    kind: Any = AdoptedBackbone,
    overrides: tuple[str, ...] = (),
) -> Backbone:
    """Return a module as a backbone, in place, with these attributes, such as `dim`.

    `kind` is AdoptedBackbone or a subclass; `overrides` are those of its methods that replace
    methods of the module. `label` names the module in errors.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise ConfigError(f"{label} is a compiled TorchScript module: pass the plain module")
    prepare(module)
    if isinstance(module, Backbone):
        return module
    for name, value in attributes.items():
        own = getattr(module, name, value)
        if own != value:
            raise ConfigError(
                f"{label} has an attribute {name} ({own!r}), which a backbone uses for another "
                f"value ({value!r}): rename it, or choose another model"
            )
    try:
        own_class: Any = type(module)
        module.__class__ = _adopted_class(own_class, kind, overrides)
    except TypeError as problem:
        raise ConfigError(f"{label} cannot be used as a backbone: {problem}") from None
    for name, value in attributes.items():
        setattr(module, name, value)
    return cast(Backbone, module)


@lru_cache(maxsize=256)
def _adopted_class(own: Any, kind: Any, overrides: tuple[str, ...]) -> Any:
    """Return a class whose methods are those of the class `own`, except `overrides` of `kind`."""

    def fill(namespace: dict[str, Any]) -> None:
        namespace["__module__"] = own.__module__
        namespace["__doc__"] = own.__doc__
        for name in overrides:
            namespace[name] = getattr(kind, name)

    return new_class(own.__name__, (own, kind), exec_body=fill)
