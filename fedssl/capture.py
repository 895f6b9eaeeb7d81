"""A training step as one CUDA graph, recorded once and replayed for every client and round.

Launching a few hundred small kernels from Python takes longer than running them. A graph is launched as a whole; it
reads its inputs from, and writes its results to, the addresses it was recorded with.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.errors import ConfigError
from fedssl.method import Given, Output
from fedssl.step import Inputs, Objective, Step
from fedssl.turns import TURNS

WARM_UP = 3  # steps before recording: libraries choose their kernels and allocate their workspaces in the first

MOST = 8  # graphs; each holds a step's activations for good


class Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    given: dict[str, Tensor]
    out: Output


class CapturedSteps:
    """A step's recordings, by objective and shapes. Called like the step itself."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._graphs: dict[Hashable, Graph] = {}
        self._seen: set[Hashable] = set()  # shapes met once are run as they are: most of them never come back
        self._last: tuple[Graph, Given] | None = None

    def __call__(self, inputs: Inputs, objective: Objective, given: Given) -> Output:
        """What it returns is overwritten by the next step."""
        tensors = _tensors(inputs)
        key = (objective, *(_shape(t) for t in tensors), *((name, _shape(t)) for name, t in given.items()))
        if key not in self._graphs:
            if key in self._seen and len(self._graphs) == MOST:
                return self._step(inputs, objective, given)
            if key not in self._seen:
                self._seen.add(key)
                with TURNS.alone():
                    return self._step(inputs, objective, given)
            with TURNS.alone():
                self._graphs[key] = self._record(inputs, objective, given)
        recorded = self._graphs[key]
        for to, new in zip(recorded.inputs, tensors, strict=True):
            to.copy_(new)
        if self._last is None or recorded is not self._last[0] or given is not self._last[1]:
            self._last = recorded, given  # the same for all steps of a client's round
            for name, to in recorded.given.items():
                to.copy_(given[name])
        recorded.graph.replay()
        return recorded.out

    def _record(self, inputs: Inputs, objective: Objective, given: Given) -> Graph:
        step, held = self._step, [t.clone() for t in self._step.moving()]
        own_inputs = _clone(inputs)
        own_given = {name: tensor.clone() for name, tensor in given.items()}
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(step.device)
        for _ in range(WARM_UP):
            step(own_inputs, objective, own_given)
        torch.cuda.synchronize(step.device)
        # thread_local: what another thread does meanwhile must not spoil the recording.
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                out = step(own_inputs, objective, own_given)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:  # something in it waits for the device: .item(), an `if` on a tensor
            raise ConfigError(f'this step cannot be a CUDA graph, try train.mode = "eager": {problem}') from problem
        torch.cuda.synchronize(step.device)
        for tensor, value in zip(step.moving(), held, strict=True):  # the warm-up has not happened
            tensor.copy_(value)
        step.refresh()
        return Graph(graph, _tensors(own_inputs), own_given, out)


def _shape(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def _tensors(inputs: Inputs) -> list[Tensor]:
    labels = [] if inputs.labels is None else [inputs.labels]
    return [inputs.rows, inputs.images, *inputs.uniforms, *labels, *inputs.draws.values()]


def _clone(inputs: Inputs) -> Inputs:
    return inputs._replace(
        rows=inputs.rows.clone(),
        images=inputs.images.clone(),
        uniforms=tuple(tensor.clone() for tensor in inputs.uniforms),
        labels=None if inputs.labels is None else inputs.labels.clone(),
        draws={name: tensor.clone() for name, tensor in inputs.draws.items()},
    )
