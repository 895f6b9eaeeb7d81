"""Networks without memory, to ask what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


class _Unfilled(TorchFunctionMode):
    """Draws no normal numbers: for a tensor without memory torch would load its compiler first, a second's work."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func in (torch.Tensor.normal_, nn.init.normal_):
            return args[0] if args else named["tensor"]
        return func(*args, **named)


@contextmanager
def unfilled() -> Iterator[None]:
    """What is built here has shapes and no numbers."""
    with _Unfilled(), torch.device("meta"):
        yield
