"""One training step: views → forward → objective → backward → optimizer → target → after-step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedssl import views
from fedssl.core.state.flatten import Shadow
from fedssl.core.state.layout import PARAMETERS
from fedssl.method import Batch, Constants, Method, Output
from fedssl.training.capture_lock import CAPTURE_LOCK
from fedssl.training.optimizers import Follower, Optimizer

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
        self._shadow: Shadow | None = None
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
            self._shadow = method.shadow()
            optimizer.low = self._shadow.slice_of(optimizer.row)
        if self._momentum is None or "target" in method.trained:
            return
        if optimizer.leads:
            optimizer.follower = self._follower(self._momentum)

    def _find_leaves(self) -> None:
        """Find the tensors that gradients are computed for, and their slots in the flat row."""
        method = self.method
        trained = {name: p for name, p in method.named_parameters() if p.requires_grad}
        layout = method.state.layout.pick(method.trained, PARAMETERS)
        slots = {}
        for entry in layout.entries:
            start = layout.offsets[entry.name]
            slots[entry.name] = self.grad[start : start + entry.size]
        low = {} if self._shadow is None else self._shadow.weights
        self._slots = [slots[name] for name in trained]
        self._leaves = [low.get(name, parameter) for name, parameter in trained.items()]
        # An objective may also have a term in the weights themselves: the float32 ones.
        self._masters: dict[int, Tensor] = {}
        for i, (name, parameter) in enumerate(trained.items()):
            if name in low:
                self._masters[i] = parameter

    def begin(self, rate: float, progress: float) -> None:
        """Reset all state that the previous client left."""
        self.optimizer.reset()
        self.optimizer.rate.fill_(rate)
        self.progress.fill_(progress)
        self.loss.zero_()
        self.method.passed = 0  # not 0 after a client that failed in mid-step

    def refresh(self) -> None:
        """Update the bfloat16 copy after weights were changed elsewhere, for example loaded."""
        if self._shadow is not None:
            with torch.no_grad():
                self._shadow.refresh()

    def __call__(self, inputs: Inputs, objective: Objective, constants: Constants) -> Output:
        """Run one step and return the output of the forward pass."""
        compiles = self.compiled and not self._called
        self._called = True
        with CAPTURE_LOCK.exclusive() if compiles else CAPTURE_LOCK.shared():
            return self._run(inputs, objective, constants)

    def _run(self, inputs: Inputs, objective: Objective, constants: Constants) -> Output:
        method = self.method
        if method.compiled != self.compiled:
            method.compile_with(self._loss if self.compiled else None)
        batch = self.batch(inputs)
        with contextlib.nullcontext() if self._shadow is None else self._shadow.substituted():
            out: Output = method(batch)
        loss = objective(method, batch, out, constants)
        leaves = [*self._leaves, *self._masters.values()]
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        with torch.no_grad():
            self.optimizer.step(self.grad, self._collect(grads))
            method.count_batch()
            if self._momentum is not None and self.optimizer.follower is None:
                method.move_target(self._momentum)
            method.after_step(out)
            if self._has_rule:
                self.refresh()
            self.loss.add_(loss.detach())
        return out

    def _follower(self, momentum: float) -> Follower:
        """Return the target as a follower of the optimizer, which a sibling shares."""
        row = self.optimizer.row
        target = self.method.parameter_row(("target",))
        online = self.method.parameter_row(self.method.mirrored)
        start = int(online.storage_offset() - row.storage_offset())
        assert 0 <= start <= len(row) - len(target), "the target mirrors a part that does not train"
        low = None if self._shadow is None else self._shadow.slice_of(target)
        return Follower(target, low, share=1 - momentum, start=start)

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
        apart = set()
        if self.optimizer.large:
            for i, grad in flat.items():
                if len(grad) >= self.optimizer.large and i not in terms:
                    apart.add(i)
        for dtype in {leaf.dtype for leaf in self._leaves}:  # one kernel copies those of one type
            copied = [i for i, g in flat.items() if g.dtype == dtype and i not in apart]
            if copied:
                torch._foreach_copy_([self._slots[i] for i in copied], [flat[i] for i in copied])
        unused = [slot for i, slot in enumerate(self._slots) if i not in flat]
        if unused:
            torch._foreach_zero_(unused)
        if terms:
            torch._foreach_add_([self._slots[i] for i in terms], list(terms.values()))
        return {int(self._slots[i].storage_offset()): flat[i] for i in apart}

    def moving(self) -> list[Tensor]:
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
