"""Build networks on the meta device, to inspect their shapes without allocating memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

# Initialisers for which torch would load its compiler on the meta device, which takes a second.
# They do not change shapes, so they are skipped.
SKIPPED = (torch.Tensor.normal_, nn.init.normal_, F.normalize)


class _SkipInitialisers(TorchFunctionMode):
    """Replaces the functions of SKIPPED by the identity."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in SKIPPED:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def uninitialized() -> Iterator[None]:
    """Build modules on the meta device: with shapes but without values."""
    with _SkipInitialisers(), torch.device("meta"):
        yield
