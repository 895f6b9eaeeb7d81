"""A training step as one CUDA graph, recorded once and replayed for every client and round.

Launching a few hundred small kernels from Python takes longer than running them. A graph is
launched as a whole; it reads its inputs from, and writes its results to, the addresses it was
recorded with.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.core.errors import ConfigError
from fedssl.method import Constants, Output
from fedssl.training.capture_lock import CAPTURE_LOCK
from fedssl.training.step import Inputs, Objective, Step

# Steps before recording: in the first, libraries choose kernels and allocate workspaces.
WARM_UP = 3

MAX_GRAPHS = 8  # each holds a step's activations permanently


class Graph(NamedTuple):
    """A recorded step and the tensors at its addresses."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    constants: dict[str, Tensor]
    out: Output


class CapturedSteps:
    """A step's recordings, by objective and shapes. Called like the step itself."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._graphs: dict[Hashable, Graph] = {}
        # A shape is run eagerly the first time: most shapes never occur again.
        self._seen: set[Hashable] = set()
        self._last: tuple[Graph, Constants] | None = None

    def __call__(self, inputs: Inputs, objective: Objective, constants: Constants) -> Output:
        """Run one step; the next step overwrites the output."""
        tensors = _tensors(inputs)
        key = _key(tensors, objective, constants)
        if key not in self._graphs:
            if key in self._seen and len(self._graphs) == MAX_GRAPHS:
                return self._step(inputs, objective, constants)
            if key not in self._seen:
                self._seen.add(key)
                with CAPTURE_LOCK.exclusive():
                    return self._step(inputs, objective, constants)
            with CAPTURE_LOCK.exclusive():
                self._graphs[key] = self._record(inputs, objective, constants)
        recorded = self._graphs[key]
        for buffer, value in zip(recorded.inputs, tensors, strict=True):
            buffer.copy_(value)
        self._copy_constants(recorded, constants)
        recorded.graph.replay()
        return recorded.out

    def _copy_constants(self, recorded: Graph, constants: Constants) -> None:
        """Copy the given tensors, unless the last step had the same: they last for a round."""
        if self._last is not None:
            last_graph, last_constants = self._last
            if recorded is last_graph and constants is last_constants:
                return
        self._last = (recorded, constants)
        for name, buffer in recorded.constants.items():
            buffer.copy_(constants[name])

    def _record(self, inputs: Inputs, objective: Objective, constants: Constants) -> Graph:
        step = self._step
        before = [tensor.clone() for tensor in step.mutable_tensors()]
        recorded_inputs = _clone(inputs)
        recorded_constants = {name: tensor.clone() for name, tensor in constants.items()}
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(step.device)
        for _ in range(WARM_UP):
            step(recorded_inputs, objective, recorded_constants)
        torch.cuda.synchronize(step.device)
        try:
            # thread_local: work of other threads must not invalidate the recording.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                out = step(recorded_inputs, objective, recorded_constants)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:  # the step waits for the device: .item(), `if tensor:`
            raise ConfigError(
                "the training step cannot be recorded as a CUDA graph: set train.mode = "
                f'"eager" to train without one. The error was: {problem}'
            ) from problem
        torch.cuda.synchronize(step.device)
        for tensor, value in zip(step.mutable_tensors(), before, strict=True):  # undo the warm-up
            tensor.copy_(value)
        step.refresh()
        return Graph(graph, _tensors(recorded_inputs), recorded_constants, out)


def _key(tensors: list[Tensor], objective: Objective, constants: Constants) -> Hashable:
    shapes = [_shape(tensor) for tensor in tensors]
    constant_shapes = [(name, _shape(tensor)) for name, tensor in constants.items()]
    return (objective, *shapes, *constant_shapes)


def _shape(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def _tensors(inputs: Inputs) -> list[Tensor]:
    tensors = [inputs.rows, inputs.images, *inputs.uniforms]
    if inputs.labels is not None:
        tensors.append(inputs.labels)
    return [*tensors, *inputs.draws.values()]


def _clone(inputs: Inputs) -> Inputs:
    labels = inputs.labels
    if labels is not None:
        labels = labels.clone()
    return inputs._replace(
        rows=inputs.rows.clone(),
        images=inputs.images.clone(),
        uniforms=tuple(tensor.clone() for tensor in inputs.uniforms),
        labels=labels,
        draws={name: tensor.clone() for name, tensor in inputs.draws.items()},
    )
