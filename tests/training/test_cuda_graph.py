"""The inputs of a captured step, with a fake in place of CUDA's graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedssl.training.cuda_graph import MAX_GRAPHS, CapturedSteps, Graph
from fedssl.training.step import Inputs


class Eager:
    """A step that counts its calls."""

    steps = 0

    def __call__(self, inputs: Inputs, objective: Any, constants: dict[str, Tensor]) -> None:
        self.steps += 1


class Replayed:
    """A graph that records its inputs and `constants` at each replay."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def replay(self) -> None:
        self.seen.append((int(self.inputs[0][0]), float(self.constants["scale"])))

    inputs: list[Tensor]
    constants: dict[str, Tensor]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Replayed]:
    made: dict[str, Replayed] = {}

    def record(
        self: CapturedSteps, inputs: Inputs, objective: Any, constants: dict[str, Tensor]
    ) -> Graph:
        fake = made[objective] = Replayed()
        fake.inputs = [inputs.rows.clone(), inputs.images.clone()]
        fake.constants = {k: t.clone() for k, t in constants.items()}
        return Graph(fake, fake.inputs, fake.constants, None)  # type: ignore[arg-type]

    monkeypatch.setattr(CapturedSteps, "_record", record)
    return made


def inputs(row: int) -> Inputs:
    return Inputs(torch.tensor([row]), torch.zeros(1, 3, 2, 2, dtype=torch.uint8), (), None, {})


def test_a_captured_step_uses_new_inputs_and_new_constants(
    graphs: dict[str, Replayed],
) -> None:
    """Two phases share one `constants` in every round: the second must not use that of the round
    before.
    """
    steps: Any = CapturedSteps(Eager())  # type: ignore[arg-type]
    for round in range(3):
        constants = {"scale": torch.tensor(float(round))}
        for row, phase in enumerate(("first", "first", "second", "second", "first")):
            steps(inputs(row), phase, constants)
    assert graphs["first"].seen == [(row, round) for round in range(3) for row in (0, 1, 4)][1:]
    assert graphs["second"].seen == [(row, round) for round in range(3) for row in (2, 3)][1:]


def test_rare_shapes_and_too_many_shapes_are_not_captured(
    graphs: dict[str, Replayed],
) -> None:
    eager = Eager()
    steps: Any = CapturedSteps(eager)  # type: ignore[arg-type]
    for rows in range(2 * MAX_GRAPHS):
        for _ in range(3):
            steps(inputs(0), f"{rows}", {"scale": torch.zeros(rows)[:1].sum()})
    assert len(graphs) == MAX_GRAPHS
    assert (
        eager.steps == MAX_GRAPHS + 3 * MAX_GRAPHS
    )  # each new shape once, and all steps of those beyond the limit
