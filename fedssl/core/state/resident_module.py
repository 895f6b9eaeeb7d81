"""A module whose parameters and buffers are views of flat rows, and the fast paths that need this.

Everything here is about how a model is stored and computed, not about what it learns: flat rows,
the bfloat16 copy of the weights, fused kernels, a compiled loss, counters and view groups of norm
layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedssl.core.state.flatten import Bf16Copy, flatten_module
from fedssl.core.state.layout import PARAMETERS
from fedssl.core.state.state import State


class ResidentModule(nn.Module):
    """A module that stays on a device while clients' states are loaded into it and copied out.

    A child may be named `target`: a momentum copy of the children in `mirrored`, in the same order.
    """

    mirrored: ClassVar[tuple[str, ...]] = ()

    state: State
    precision: str = "fp32"
    compiled: bool = False  # see `compile_with`
    fused: bool = False
    uncounted_batches: int = 0  # batches since the last step, for the counters of norm layers
    _bf16_copy: Bf16Copy | None = None
    _bf16_target: Tensor | None = None  # the target's slice of the bfloat16 copy

    def reside(self, device: torch.device | str = "cpu") -> Self:
        """Lay all parameters and buffers into one State; modules keep views of its rows."""
        self.state = flatten_module(self, device)
        self._counters = self.state.counts[: self._count_norm_counters()]
        self._norms = [module for module in self.modules() if isinstance(module, _BatchNorm)]
        if any(not hasattr(norm, "groups") for norm in self._norms):
            raise TypeError(
                "a backbone or head has a BatchNorm layer of torch.nn, which mixes the statistics "
                "of views: use the norm layers in fedssl.nets"
            )
        if "target" in self._modules:
            self._online_row = self.parameter_row(self.mirrored)
            self._target_row = self.parameter_row(("target",))
        return self

    def _count_norm_counters(self) -> int:
        """Return the number of batch counters, which must come first in the row of integers."""
        of_norms = []
        for entry in self.state.layout.entries:
            if entry.role == "counter":
                of_norms.append(entry.name.endswith(".num_batches_tracked"))
        count = sum(of_norms)
        if any(of_norms[count:]):
            raise TypeError(
                "a part with integer buffers comes before one with norm layers; it must come after"
            )
        return count

    def parameter_row(self, parts: tuple[str, ...]) -> Tensor:
        """Return the parameters of neighbouring parts, as one live slice of the row.

        It carries no gradient: a term of a loss must use `named_parameters()`.
        """
        layout = self.state.layout
        entries = [e for e in layout.entries if e.part in parts and e.role in PARAMETERS]
        start = layout.offsets[entries[0].name]
        end = layout.offsets[entries[-1].name] + entries[-1].size
        size = sum(entry.size for entry in entries)
        assert end - start == size, "the parts are not neighbours in the row"
        return self.state.floats[start:end]

    def count_batch(self) -> None:
        """Advance the batch counters of all norm layers at once."""
        self._counters.add_(self.uncounted_batches)
        self.uncounted_batches = 0

    @torch.no_grad()
    def move_target(self, momentum: float) -> None:
        """target ← momentum·target + (1 − momentum)·online, over parameters: one operation."""
        if self.fused:
            from fedssl.core.kernels.update import lerp  # needs Triton, which needs CUDA

            lerp(self._target_row, self._bf16_target, self._online_row, 1 - momentum)
            return
        self._target_row.lerp_(self._online_row, 1 - momentum)
        if self._bf16_target is not None:
            self._bf16_target.copy_(self._target_row)

    def compile_with(self, loss: Callable[..., Any] | None) -> None:
        """Train with this compiled loss and, on CUDA, with fused kernels; None: in plain torch."""
        self.compiled = loss is not None
        self.__dict__.pop("loss", None)
        if loss is not None:
            self.__dict__["loss"] = loss  # hides the method of the class
        self.fuse(self.compiled and self.state.floats.is_cuda)

    def fuse(self, fused: bool) -> None:
        """Choose whether layers with fused kernels train with them."""
        for module in self.modules():
            # Of the class: an attribute of an instance has another meaning in other libraries.
            if hasattr(type(module), "fused"):
                module.fused = fused  # type: ignore[assignment]

    def make_bf16_copy(self) -> Bf16Copy:
        """Create a bfloat16 copy of the weights; `move_target` updates the target's part of it."""
        self._bf16_copy = Bf16Copy(self, self.state)
        if "target" in self._modules:
            self._bf16_target = self._bf16_copy.slice_of(self._target_row)
        return self._bf16_copy

    def _compute_weights(self) -> contextlib.AbstractContextManager[None]:
        """Use the bfloat16 copy in a compiled step: an objective may encode other inputs too."""
        if self._bf16_copy is not None and self.training and self.compiled:
            return self._bf16_copy.substituted()
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _untracked(self) -> Iterator[None]:
        """Leave the running statistics of norm layers unchanged."""
        momenta = [norm.momentum for norm in self._norms]
        for norm in self._norms:
            norm.momentum = 0.0
        try:
            yield
        finally:
            for norm, momentum in zip(self._norms, momenta, strict=True):
                norm.momentum = momentum

    def _set_groups(self, groups: int) -> None:
        for norm in self._norms:
            norm.groups = groups  # type: ignore[assignment]

    def _autocast(self, images: Tensor) -> torch.autocast:
        return torch.autocast(images.device.type, torch.bfloat16, enabled=self.precision == "bf16")
