"""One training step of a resident method: views → forward → objective → backward → optimizer → target → after-step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedssl import views
from fedssl.layout import PARAMETERS
from fedssl.method import Batch, Given, Method, Output
from fedssl.optim import Follower, Optimizer
from fedssl.turns import TURNS

Objective: TypeAlias = Callable[[Method, Batch, Output, Given], Tensor]


class Inputs(NamedTuple):
    """All that is new in a step. Whatever else a step reads or writes stays at its address."""

    rows: Tensor  # (B,) of the client's images
    images: Tensor  # (B, C, H, W) uint8
    uniforms: tuple[Tensor, ...]  # one (V·B, columns) per ViewGroup
    labels: Tensor | None
    draws: Mapping[str, Tensor]


class Step:
    """Called with a step's inputs. `compiled`: views and loss become a few kernels of torch's compiler, layers use
    those they have of their own, and weights are cast as one row; without it every line is plain torch.

    `beside`: another step of the same method, for other batches; what a client's steps add up to, they share.
    """

    def __init__(
        self, method: Method, optimizer: Optimizer, compiled: bool = False, beside: Step | None = None
    ) -> None:
        self.method, self.optimizer, self.compiled = method, optimizer, compiled
        self._fresh = True  # never called
        self.device = method.state.floats.device
        zero = torch.zeros((), device=self.device)
        self.loss: Tensor = zero.clone() if beside is None else beside.loss  # the sum over steps
        self.progress: Tensor = zero if beside is None else beside.progress
        self.grad: Tensor = torch.zeros_like(optimizer.row) if beside is None else beside.grad
        self._make_views, self._loss, self._shadow = views.make_views, type(method).loss.__get__(method), None
        if compiled:
            self._make_views, self._loss = (torch.compile(f, dynamic=False) for f in (self._make_views, self._loss))
        if compiled and method.precision == "bf16":
            self._shadow = method.shadow()
            optimizer.low = self._shadow.beside(optimizer.row)
        self._momentum = method.target_momentum
        if compiled and optimizer.leads and self._momentum is not None and "target" not in method.trained:
            optimizer.follower = self._follower(self._momentum)
        # Whether weights may change after a step by a rule of the method's own, such as unit length.
        self._has_rule = type(method).after_step is not Method.after_step and method.after_step_moves_weights
        trained = {name: p for name, p in method.named_parameters() if p.requires_grad}
        layout = method.state.layout.pick(method.trained, PARAMETERS)
        slots = {e.name: self.grad[(at := layout.offsets[e.name]) : at + e.size] for e in layout.entries}
        low = {} if self._shadow is None else {n: w for n, w in self._shadow.weights.items() if n in trained}
        self._slots = [slots[name] for name in trained]
        self._leaves = [low.get(name, p) for name, p in trained.items()]
        # An objective may also have a term in the weights themselves: these are the float32 ones.
        self._masters = {i: p for i, (name, p) in enumerate(trained.items()) if name in low}

    def begin(self, rate: float, progress: float) -> None:
        """Forget the client before."""
        self.optimizer.reset()
        self.optimizer.rate.fill_(rate)
        self.progress.fill_(progress)
        self.loss.zero_()
        self.method.passed = 0  # whatever a client that broke off left behind

    def refresh(self) -> None:
        """After weights were changed by anybody but this step: a client's were loaded, say."""
        if self._shadow is not None:
            with torch.no_grad():
                self._shadow.refresh()

    def __call__(self, inputs: Inputs, objective: Objective, given: Given) -> Output:
        compiles, self._fresh = self._fresh and self.compiled, False
        with TURNS.alone() if compiles else TURNS.beside():
            return self._run(inputs, objective, given)

    def _run(self, inputs: Inputs, objective: Objective, given: Given) -> Output:
        if self.method.compiled != self.compiled:
            self.method.compile_with(self._loss if self.compiled else None)
        batch = self.batch(inputs)
        with contextlib.nullcontext() if self._shadow is None else self._shadow.worn():
            out: Output = self.method(batch)
        loss = objective(self.method, batch, out, given)
        grads = torch.autograd.grad(loss, [*self._leaves, *self._masters.values()], allow_unused=True)
        with torch.no_grad():
            self.optimizer.step(self.grad, self._collect(grads))
            self.method.count_batch()
            if self._momentum is not None and self.optimizer.follower is None:
                self.method.move_target(self._momentum)
            self.method.after_step(out)
            if self._has_rule:
                self.refresh()
            self.loss.add_(loss.detach())
        return out

    def _follower(self, momentum: float) -> Follower:
        """The target, for the optimizer to move: also in a step beside this one, since they share the optimizer."""
        method, row = self.method, self.optimizer.row
        target, online = method.parameter_row(("target",)), method.parameter_row(method.mirrored)
        start = int(online.storage_offset() - row.storage_offset())
        assert 0 <= start <= len(row) - len(target), "the target mirrors a part that does not train"
        return Follower(target, None if self._shadow is None else self._shadow.beside(target), 1 - momentum, start)

    def batch(self, inputs: Inputs) -> Batch:
        """What a method sees of a step's inputs."""
        method = self.method
        made = tuple(
            self._make_views(group, inputs.images, uniforms, method.mean, method.std)
            for group, uniforms in zip(method.views, inputs.uniforms, strict=True)
        )
        return Batch(inputs.rows, inputs.images, made, inputs.labels, inputs.draws, self.progress)

    def _collect(self, grads: tuple[Tensor | None, ...]) -> dict[int, Tensor]:
        """Gradients into their places of the flat row, but for large ones if the optimizer reads them where they are:
        those by their places. A parameter the loss does not depend on has a gradient of 0."""
        count, large = len(self._leaves), self.optimizer.large
        terms = {i: _flat(g) for i, g in zip(self._masters, grads[count:], strict=True) if g is not None}
        found = {i: _flat(g) for i, g in enumerate(grads[:count]) if g is not None}
        left = {i for i, g in found.items() if large and len(g) >= large and i not in terms}
        for dtype in {leaf.dtype for leaf in self._leaves}:  # those of one type are copied by one kernel
            copied = [i for i, g in found.items() if g.dtype == dtype and i not in left]
            if copied:
                torch._foreach_copy_([self._slots[i] for i in copied], [found[i] for i in copied])
        if unused := [slot for i, slot in enumerate(self._slots) if i not in found]:
            torch._foreach_zero_(unused)
        if terms:
            torch._foreach_add_([self._slots[i] for i in terms], list(terms.values()))
        return {int(self._slots[i].storage_offset()): found[i] for i in left}

    def moving(self) -> list[Tensor]:
        """Every tensor a step changes and the next one reads."""
        return [self.method.state.floats, self.method.state.counts, self.loss, *self.optimizer.tensors()]


def _flat(grad: Tensor) -> Tensor:
    """A gradient as it lies in a row: see `State.view`."""
    return grad.permute(0, 2, 3, 1).reshape(-1) if grad.ndim == 4 else grad.reshape(-1)
