"""One training step: views → forward → objective → backward → optimizer → target → hook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedssl import views
from fedssl.core.state.flatten import Bf16Copy
from fedssl.core.state.layout import PARAMETERS
from fedssl.method import Batch, Constants, Method, Output
from fedssl.training.capture_lock import CAPTURE_LOCK
from fedssl.training.optimizers import EmaTarget, Optimizer

Objective: TypeAlias = Callable[[Method, Batch, Output, Constants], Tensor]


class Inputs(NamedTuple):
    """The new values of a step. All other tensors that it reads or writes keep their address."""

    rows: Tensor  # (B,) of the client's images
    images: Tensor  # (B, C, H, W) uint8
    uniforms: tuple[Tensor, ...]  # one (V·B, columns) per ViewGroup
    labels: Tensor | None
    draws: Mapping[str, Tensor]


class Step:
    """A training step of a resident method, called with the step's inputs.

    `compiled`: views and loss become a few kernels of torch's compiler, layers use their fused
    kernels, and weights are cast as one row; without it every line is plain torch.

    `sibling`: another step of the same method, for batches of other sizes; both share the loss, the
    progress and the row of gradients.
    """

    def __init__(
        self,
        method: Method,
        optimizer: Optimizer,
        compiled: bool = False,
        sibling: Step | None = None,
    ) -> None:
        self.method = method
        self.optimizer = optimizer
        self.compiled = compiled
        self.device = method.state.floats.device
        self._called = False
        if sibling is None:
            self.loss = torch.zeros((), device=self.device)  # the sum over steps
            self.progress = torch.zeros((), device=self.device)
            self.grad = torch.zeros_like(optimizer.row)
        else:
            self.loss = sibling.loss
            self.progress = sibling.progress
            self.grad = sibling.grad
        self._make_views = views.make_views
        self._loss = type(method).loss.__get__(method)
        self._bf16_copy: Bf16Copy | None = None
        self._momentum = method.target_momentum
        if compiled:
            self._compile()
        # True if weights may change after a step by a rule of the method, such as unit length.
        has_rule = type(method).after_step is not Method.after_step
        self._has_rule = has_rule and method.after_step_moves_weights
        self._find_leaves()

    def _compile(self) -> None:
        """Compile views and loss; cast weights and move the target with the optimizer."""
        method = self.method
        optimizer = self.optimizer
        self._make_views = torch.compile(self._make_views, dynamic=False)
        self._loss = torch.compile(self._loss, dynamic=False)
        if method.precision == "bf16":
            self._bf16_copy = method.make_bf16_copy()
            optimizer.bf16_copy = self._bf16_copy.slice_of(optimizer.row)
        if self._momentum is None or "target" in method.trained:
            return
        if optimizer.supports_ema:
            optimizer.ema_target = self._ema_target(self._momentum)

    def _find_leaves(self) -> None:
        """Find the tensors that gradients are computed for, and their slots in the flat row."""
        method = self.method
        layout = method.state.layout.pick(method.trained, PARAMETERS)
        low_weights: Mapping[str, Tensor] = {}
        if self._bf16_copy is not None:
            low_weights = self._bf16_copy.weights
        self._slots: list[Tensor] = []
        self._leaves: list[Tensor] = []
        # An objective may also have a term in the weights themselves: the float32 ones.
        self._masters: dict[int, Tensor] = {}
        for name, parameter in method.named_parameters():
            if not parameter.requires_grad:
                continue
            if name in low_weights:
                self._masters[len(self._leaves)] = parameter
            start = layout.offsets[name]
            self._slots.append(self.grad[start : start + parameter.numel()])
            self._leaves.append(low_weights.get(name, parameter))

    def begin(self, lr: float, progress: float) -> None:
        """Reset all state that the previous client left."""
        self.optimizer.reset()
        self.optimizer.lr.fill_(lr)
        self.progress.fill_(progress)
        self.loss.zero_()
        self.method.uncounted_batches = 0  # not 0 after a client that failed in mid-step

    def refresh(self) -> None:
        """Update the bfloat16 copy after weights were changed elsewhere, for example loaded."""
        if self._bf16_copy is not None:
            with torch.no_grad():
                self._bf16_copy.refresh()

    def __call__(self, inputs: Inputs, objective: Objective, constants: Constants) -> Output:
        """Run one step and return the output of the forward pass."""
        lock = CAPTURE_LOCK.shared()
        if self.compiled and not self._called:  # the first call compiles
            lock = CAPTURE_LOCK.exclusive()
        self._called = True
        with lock:
            return self._run(inputs, objective, constants)

    def _run(self, inputs: Inputs, objective: Objective, constants: Constants) -> Output:
        method = self.method
        if method.compiled != self.compiled:
            method.compile_with(self._loss if self.compiled else None)
        batch = self.batch(inputs)
        out = self._forward(batch)
        loss = objective(method, batch, out, constants)
        leaves = [*self._leaves, *self._masters.values()]
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        with torch.no_grad():
            self.optimizer.step(self.grad, self._collect(grads))
            method.count_batch()
            if self._momentum is not None and self.optimizer.ema_target is None:
                method.move_target(self._momentum)
            method.after_step(out)
            if self._has_rule:
                self.refresh()
            self.loss.add_(loss.detach())
        return out

    def _forward(self, batch: Batch) -> Output:
        """Return the method's output for a batch, computed with the bfloat16 copy if it exists."""
        out: Output
        if self._bf16_copy is None:
            out = self.method(batch)
            return out
        with self._bf16_copy.substituted():
            out = self.method(batch)
        return out

    def _ema_target(self, momentum: float) -> EmaTarget:
        """Return the target as an EMA target of the optimizer; a sibling shares it."""
        row = self.optimizer.row
        target = self.method.parameter_row(("target",))
        online = self.method.parameter_row(self.method.mirrored)
        start = int(online.storage_offset() - row.storage_offset())
        assert 0 <= start <= len(row) - len(target), "the target mirrors a part that does not train"
        bf16_copy = None
        if self._bf16_copy is not None:
            bf16_copy = self._bf16_copy.slice_of(target)
        return EmaTarget(target, bf16_copy, share=1 - momentum, start=start)

    def batch(self, inputs: Inputs) -> Batch:
        """Return a step's inputs as the batch of a method, with views."""
        method = self.method
        groups = []
        for group, uniforms in zip(method.views, inputs.uniforms, strict=True):
            groups.append(self._make_views(group, inputs.images, uniforms, method.mean, method.std))
        return Batch(
            inputs.rows,
            inputs.images,
            tuple(groups),
            labels=inputs.labels,
            draws=inputs.draws,
            progress=self.progress,
        )

    def _collect(self, grads: tuple[Tensor | None, ...]) -> dict[int, Tensor]:
        """Copy gradients into their slots of the flat row; return large ones by their offset.

        Large gradients stay in place if the optimizer can read them there. A parameter that the
        loss does not depend on has a gradient of 0.
        """
        count = len(self._leaves)
        terms = _flat_gradients(zip(self._masters, grads[count:], strict=True))
        flat = _flat_gradients(enumerate(grads[:count]))
        separate: dict[int, Tensor] = {}
        copied: dict[torch.dtype, list[int]] = {}
        for i, grad in flat.items():
            if self._is_large(grad) and i not in terms:
                separate[int(self._slots[i].storage_offset())] = grad
            else:
                copied.setdefault(grad.dtype, []).append(i)
        for same_type in copied.values():  # one kernel copies those of one type
            torch._foreach_copy_([self._slots[i] for i in same_type], [flat[i] for i in same_type])
        unused = [slot for i, slot in enumerate(self._slots) if i not in flat]
        if unused:
            torch._foreach_zero_(unused)
        if terms:
            torch._foreach_add_([self._slots[i] for i in terms], list(terms.values()))
        return separate

    def _is_large(self, grad: Tensor) -> bool:
        """True if the optimizer can read a gradient (n,) in place."""
        smallest = self.optimizer.min_separate_size
        return smallest is not None and len(grad) >= smallest

    def mutable_tensors(self) -> list[Tensor]:
        """Return every tensor that a step changes and the next one reads."""
        state = self.method.state
        return [state.floats, state.counts, self.loss, *self.optimizer.tensors()]


def _flat_gradients(numbered: Iterable[tuple[int, Tensor | None]]) -> dict[int, Tensor]:
    """Return the gradients that exist, by number, each as it is laid out in a row."""
    flat = {}
    for i, grad in numbered:
        if grad is not None:
            flat[i] = _flat(grad)
    return flat


def _flat(grad: Tensor) -> Tensor:
    """Return a gradient as it is laid out in a row, see `State.view`."""
    if grad.ndim == 4:
        return grad.permute(0, 2, 3, 1).reshape(-1)
    return grad.reshape(-1)
