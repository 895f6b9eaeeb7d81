"""The variants of collaborative fine-tuning that benchmarks/collaborative.py compares.

Each variant in `ONE_CHANGE` changes one setting of the probe `collaborative`. `SEVERAL_CHANGES`
combines the changes that mattered. `Study` is the method `supervised` with switches for what the
settings of an experiment cannot change; without any of them, it is `supervised` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedssl.method import METHODS, Batch, Constants, Output
from fedssl.methods.supervised import Supervised, SupervisedSettings, cross_entropy
from fedssl.runs.collaborative_probe import CLEAN as CLEAN_VIEWS


class StudySettings(SupervisedSettings):
    """Supervised learning with switches."""

    fixed_statistics: bool = False  # BatchNorm in evaluation mode, as pre-training left it
    frozen: bool = False  # only the head is trained
    zero_head: bool = False  # the head's weights start at 0
    own_classes: bool = False  # the softmax of a client is over the classes in its batch


class Study(Supervised):
    """Supervised learning with switches."""

    Settings = StudySettings
    settings: StudySettings

    def __init__(self, settings: StudySettings, backbone: torch.nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        if settings.zero_head:
            for weight in self.projector.parameters():
                torch.nn.init.zeros_(weight)

    def train(self, mode: bool = True) -> Self:
        """Select training mode; BatchNorm stays in evaluation mode if statistics are fixed."""
        super().train(mode)
        if self.settings.fixed_statistics:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def forward(self, batch: Batch) -> Output:
        """Encode the view; no gradient reaches a frozen backbone."""
        out = super().forward(batch)
        if not self.settings.frozen:
            return out
        z = self.projector(out.h.detach().flatten(0, 1))
        return out._replace(z=z.view(*out.h.shape[:2], -1))

    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return the cross-entropy with the labels, over all classes or over the client's own."""
        if not self.settings.own_classes:
            return super().loss(out, constants)
        assert out.expected is not None
        present = torch.zeros(out.z.shape[-1], dtype=torch.bool, device=out.z.device)
        present[out.expected.flatten()] = True
        return cross_entropy(out.z.masked_fill(~present, -1e9), out.expected)


STUDY = "collaborative-study"


def register_study() -> None:
    """Make the method known to experiments."""
    METHODS.register(STUDY)(Study)


class Variant(NamedTuple):
    """Changes to the probe."""

    changes: Mapping[str, Any] = {}  # of the experiment that fine-tunes
    # The holders of the labelled images: their owners, clients at random, or a single client.
    owners: Literal["own", "dealt", "pooled"] = "own"
    pooled_statistics: bool = False  # for the test: BatchNorm statistics of all labelled images


FIXED = {"method.fixed_statistics": True}
HEAD_ONLY = {**FIXED, "method.frozen": True}
SGD = {"train.optimizer": "sgd", "train.momentum": 0.0}
# Clients send their gradient (one step of SGD at rate 1); the server takes a step of Adam.
SERVER_ADAM = {
    **SGD,
    "train.lr": 1.0,
    "algorithm.name": "fedadam",
    "algorithm.lr": 1e-3,
    "algorithm.tau": 1e-8,
}
# All settings of views are set: one that is left out would have the default of other methods.
CLEAN = {f"method.augment.{key}": value for key, value in CLEAN_VIEWS.model_dump().items()}
FEDCA = {**CLEAN, "method.head": "mlp", "rounds": 20, "train.epochs": 5}
ONE_CHANGE: dict[str, Variant] = {
    "as it is": Variant(),
    # The distribution of labels over clients, and the weights of clients.
    "labels dealt to clients at random": Variant(owners="dealt"),
    "all labels at one client, one batch": Variant({"train.batch": 1000}, owners="pooled"),
    "softmax over the client's own classes": Variant({"method.own_classes": True}),
    "clients weigh equally": Variant({"algorithm.weights": "uniform"}),
    # The optimizer.
    "lr 0.0001": Variant({"train.lr": 1e-4}),
    "lr 0.0003": Variant({"train.lr": 3e-4}),
    "lr 0.003": Variant({"train.lr": 3e-3}),
    "lr 0.01": Variant({"train.lr": 1e-2}),
    "SGD, lr 0.01": Variant({**SGD, "train.lr": 0.01}),
    "SGD, lr 0.03": Variant({**SGD, "train.lr": 0.03}),
    "SGD, lr 0.1": Variant({**SGD, "train.lr": 0.1}),
    "SGD, lr 0.3": Variant({**SGD, "train.lr": 0.3}),
    "Adam at the server": Variant(SERVER_ADAM),
    # Rounds and local steps.
    "20 rounds": Variant({"rounds": 20}),
    "96 rounds": Variant({"rounds": 96}),
    "104 rounds": Variant({"rounds": 104}),
    "300 rounds": Variant({"rounds": 300}),
    "20 rounds of 5 epochs": Variant({"rounds": 20, "train.epochs": 5}),
    "batches of 20": Variant({"train.batch": 20}),
    # BatchNorm, and which weights are trained.
    "BatchNorm fixed": Variant(FIXED),
    "pooled BatchNorm statistics for the test": Variant(pooled_statistics=True),
    "head only, BatchNorm fixed": Variant(HEAD_ONLY),
    # The head and the images.
    "head starts at 0": Variant({"method.zero_head": True}),
    "two-layer head": Variant({"method.head": "mlp"}),
    "clean images": Variant(CLEAN),
}
SERVER_AND_FIXED = {**SERVER_ADAM, **FIXED}
SGD_AND_FIXED = {**SGD, **FIXED, "train.lr": 0.1}
CLEAN_HEAD = {**CLEAN, **HEAD_ONLY}
SEVERAL_CHANGES: dict[str, Variant] = {
    "Adam at the server, BatchNorm fixed": Variant(SERVER_AND_FIXED),
    "SGD, lr 0.1, BatchNorm fixed": Variant(SGD_AND_FIXED),
    "clean, labels dealt": Variant(CLEAN, owners="dealt"),
    "clean, BatchNorm fixed": Variant({**CLEAN, **FIXED}),
    "clean, BatchNorm fixed, labels dealt": Variant({**CLEAN, **FIXED}, owners="dealt"),
    "clean, Adam at the server": Variant({**CLEAN, **SERVER_ADAM}),
    "clean, Adam at the server, labels dealt": Variant({**CLEAN, **SERVER_ADAM}, owners="dealt"),
    "clean, Adam at the server, BatchNorm fixed": Variant({**CLEAN, **SERVER_AND_FIXED}),
    "clean, Adam at the server, BatchNorm fixed, labels dealt": Variant(
        {**CLEAN, **SERVER_AND_FIXED}, owners="dealt"
    ),
    "clean, SGD, lr 0.1": Variant({**CLEAN, **SGD, "train.lr": 0.1}),
    "clean, SGD, lr 0.1, BatchNorm fixed": Variant({**CLEAN, **SGD_AND_FIXED}),
    "clean, lr 0.003": Variant({**CLEAN, "train.lr": 3e-3}),
    "clean, 300 rounds": Variant({**CLEAN, "rounds": 300}),
    "clean, head only": Variant(CLEAN_HEAD),
    "clean, head only, labels dealt": Variant(CLEAN_HEAD, owners="dealt"),
    "clean, head only, SGD, lr 0.3": Variant({**CLEAN_HEAD, **SGD, "train.lr": 0.3}),
    "clean, head only, Adam at the server": Variant({**CLEAN_HEAD, **SERVER_ADAM}),
    "protocol fedca": Variant(FEDCA),
    "protocol fedca, labels dealt": Variant(FEDCA, owners="dealt"),
}
VARIANTS = {**ONE_CHANGE, **SEVERAL_CHANGES}
