"""A method of three numbers whose training is scripted, so that rounds can be worked out by hand.

The encoder is one weight w (backbone and projector have the same), the predictor one weight q, the
target a copy of w. Training adds fixed amounts. The global model starts with w = 10, q = 1. A
client's image has the features (w, 10).

    client  images  online  target  predictor  statistic  counter
    A       1       +4      +2      +1         +1         +1
    B       3       +8      +6      +3         +5         +2
    C       -        0       0       0          0          0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedssl.algorithm import Algorithm, Upload
from fedssl.core.state.mean import Mean
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.engine.uploads.guard import Guard
from fedssl.engine.uploads.records import Reply
from fedssl.method import Batch, Constants, Method, MethodSettings, Output
from fedssl.nets import BatchNorm1d
from fedssl.training.step import Objective
from fedssl.training.trainer import Metrics, Trainer, TrainingTask


class Number(nn.Module):
    dim = 1

    def __init__(self, value: float, norm: bool = False) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([value]))
        if norm:
            self.norm = BatchNorm1d(1)


class Toy(Method):
    def __init__(self, settings: MethodSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.projector = Number(10.0)
        self.predictor = Number(1.0)
        self.target = self.mirror()

    def forward(self, batch: Batch) -> Output:
        raise NotImplementedError

    def loss(self, out: Output, constants: Constants) -> Tensor:
        raise NotImplementedError


class Numbers(NamedTuple):
    online: float
    target: float
    predictor: float


class Extra(NamedTuple):
    statistic: float
    counter: int


ADDED = {"A": Numbers(4, 2, 1), "B": Numbers(8, 6, 3), "C": Numbers(0, 0, 0)}
EXTRA = {"A": Extra(1, 1), "B": Extra(5, 2), "C": Extra(0, 0)}
IMAGES = {"A": 1, "B": 3}


@dataclass
class Scripted:
    """A client whose training records its start and adds the amounts of the table above."""

    id: str
    memory: Tree
    method: Method
    round: int = 0
    started: list[Numbers] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)

    def generator(self, purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(0)

    def embed(self, state: State, what: str = "h") -> Tensor:
        return torch.tensor([[state.tensors()["backbone.w"].item(), 10.0]])

    def train(self, objective: Any, constants: Constants, draw: Any) -> Metrics:
        """Add the scripted amounts; the loss is the weight at the start."""
        self.started.append(numbers(self.method))
        added = ADDED[self.id]
        extra = EXTRA[self.id]
        t = self.method.state.tensors()
        for part in ("backbone", "projector"):
            t[f"{part}.w"] += added.online
            t[f"target.{part}.w"] += added.target
        t["predictor.w"] += added.predictor
        t["backbone.norm.running_mean"] += extra.statistic
        t["backbone.norm.num_batches_tracked"] += extra.counter
        return Metrics(self.started[-1].online, 1, 1, 1.0, 0.0, 0.0)


def numbers(method: Method) -> Numbers:
    t = method.state.tensors()
    assert t["backbone.w"] == t["projector.w"]
    assert t["target.backbone.w"] == t["target.projector.w"]
    return Numbers(t["backbone.w"].item(), t["target.backbone.w"].item(), t["predictor.w"].item())


def toy() -> Method:
    return Toy(MethodSettings(), Number(10.0, norm=True), 1).reside()


def starts_of_training(trainer: Trainer, run: Callable[[], object]) -> list[State]:
    """Return the resident model at the start of each training that `run` causes."""
    starts: list[State] = []

    def fit(task: TrainingTask, objective: Objective, constants: Constants) -> Metrics:
        starts.append(trainer.method.state.clone())
        return Trainer.fit(trainer, task, objective, constants)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "fit", fit)
        run()
    return starts


class Federation:
    """One resident method that is lent to one client after another, as a trainer is."""

    def __init__(self, algorithm: Algorithm, clients: Mapping[str, int] = {"A": 0, "B": 1}) -> None:
        self.algorithm = algorithm
        self.method = toy()
        first = self.algorithm.init(Scripted("home", {}, self.method))  # type: ignore[arg-type]
        self.site = self.algorithm.init_site(first, clients)
        self.memory: dict[str, Tree] = {}
        self.uploads: dict[str, Tree] = {}
        self.notes: dict[str, dict[str, float]] = {}
        self.started: dict[
            str, list[Numbers]
        ] = {}  # where each training of a client's last round started
        self.number = 0

    def start_of(self, client_id: str) -> Numbers:
        client = Scripted(client_id, self.memory.get(client_id, {}), self.method, self.number)
        message = self.algorithm.broadcast(self.site, client_id)
        upload, memory = self.algorithm.client_update(client, message)  # type: ignore[arg-type]
        guard = Guard(
            self.algorithm.upload_schema(self.method), 0, [client_id], {client_id: message}
        )
        assert [received.upload for received in guard([Reply(client_id, 1, upload, None)])] == [
            upload
        ]
        self.uploads[client_id], self.memory[client_id], self.notes[client_id] = (
            upload,
            memory,
            client.notes,
        )
        self.started[client_id] = client.started
        return client.started[0]

    def personal(self, client_id: str) -> State | None:
        return self.algorithm.personal(
            self.algorithm.broadcast(self.site, client_id), self.memory.get(client_id, {})
        )

    def round(self, *clients: str) -> dict[str, Numbers]:
        self.uploads = {}
        starts = {client: self.start_of(client) for client in clients}
        weights = {
            c: float(IMAGES[c]) if self.algorithm.weights == "size" else 1.0 for c in clients
        }
        self.site = self.algorithm.merge(
            self.site, (Upload(c, weights[c], upload) for c, upload in self.uploads.items()), Mean
        )
        self.number += 1
        return starts

    def held(self) -> dict[str, float]:
        t = model(self.site, "model").tensors()
        held = {"encoder": t["backbone.w"].item(), "predictor": t["predictor.w"].item()}
        if "target" in self.site:
            held["target"] = model(self.site, "target").tensors()["target.backbone.w"].item()
        return held
