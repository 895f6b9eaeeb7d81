"""The client under attack: its images, and the model and objective it would train with next.

The algorithm's own client part runs until it starts to train, so the model, the objective and its
constants are those of the next round with every algorithm. Nothing is merged or written.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.algorithm import Algorithm
from fedssl.analysis.audit.batch_statistics import Moments, Statistics, from_running
from fedssl.analysis.local import client_memory, round_position, train_client
from fedssl.core.devices.precision import numerics, threads
from fedssl.core.devices.select import training_devices
from fedssl.core.errors import ConfigError
from fedssl.core.state.layout import PARAMETERS, Entry, Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.data import Dataset
from fedssl.engine.checkpoints.store import Snapshot
from fedssl.engine.runtimes.client_round import ClientRound, RunContext, run_client
from fedssl.experiment.federation_setup import Federation, build_method
from fedssl.method import Constants, Method
from fedssl.runs.run import Run
from fedssl.training.step import Objective
from fedssl.training.trainer import Metrics, Trainer, TrainingTask, resolve_precision


class _TrainingStarts(Exception):  # noqa: N818 - not an error
    """Raised in place of training, with the arguments of `Trainer.fit`."""

    def __init__(self, task: TrainingTask, objective: Objective, constants: Constants) -> None:
        super().__init__()
        self.task = task
        self.objective = objective
        self.constants = constants


class _StoppingTrainer(Trainer):
    """A trainer that stops where training would start."""

    def fit(self, task: TrainingTask, objective: Objective, constants: Constants) -> Metrics:
        raise _TrainingStarts(task, objective, constants)


class LocalTraining(NamedTuple):
    """What a client trains in a round: the model it starts from, and its objective."""

    method: Method  # holds the first weights; in training mode, in float32
    task: TrainingTask
    objective: Objective
    constants: Constants


@dataclass(frozen=True)
class Victim:
    """One client in the round after the newest checkpoint, or in the last round again."""

    federation: Federation
    snapshot: Snapshot
    context: RunContext
    client: str
    site: str

    @classmethod
    def of(
        cls, run: Run, snapshot: Snapshot, *, seen: Dataset, owners: Mapping[str, Tensor],
        public: Tensor | None, client: str,
    ) -> Victim:  # fmt: skip
        """Return a client of a run. `seen` and `owners` are as from `Run.partition_data`."""
        device = training_devices(run.device)[0]
        federation = Federation.build(
            run.experiment, seen, owners, public=public, device=device, parallel=1
        )
        position = round_position(run.experiment, snapshot.rounds, None)
        context = replace(federation.context(threading.Event()), position=lambda round: position)
        seed = run.experiment.seed
        plan = run.experiment.topology.plan(federation.clients, snapshot.rounds, seed)
        # A client that is not selected in this round would train in a later one.
        site = plan.site_of.get(client, next(iter(plan.site_of.values())))
        return cls(federation, snapshot, context, client, site)

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of the run."""
        return self.federation.experiment.algorithm

    @property
    def device(self) -> torch.device:
        """The device on which the client trains."""
        return self.federation.device

    @property
    def message(self) -> Tree:
        """The message that the client would receive."""
        return self.algorithm.broadcast(self.snapshot.sites[self.site], self.client)

    def uploaded(self) -> list[Entry]:
        """Return the entries of the trained parts that the client uploads, without repeats."""
        method = self.federation.trainer.method
        entries: dict[str, Entry] = {}
        for spec in self.algorithm.upload_schema(method).values():
            if isinstance(spec, Layout):
                entries.update({e.name: e for e in spec.entries if e.part in method.trained})
        return list(entries.values())

    @property
    def parameters(self) -> list[str]:
        """The names of the trained parameters that the client uploads."""
        return [entry.name for entry in self.uploaded() if entry.role in PARAMETERS]

    @property
    def statistics(self) -> list[str]:
        """The names of the layers whose running statistics the client uploads."""
        names = []
        for entry in self.uploaded():
            layer, _, leaf = entry.name.rpartition(".")
            if entry.role == "statistic" and leaf == "running_mean":
                names.append(layer)
        return names

    def training(self) -> LocalTraining:
        """Return what the client would train."""
        federation = self.federation
        trainer = _StoppingTrainer(federation.trainer.method, federation.experiment.train)
        part = ClientRound(
            client=self.client,
            round=self.snapshot.rounds,
            shard=federation.shards[self.client],
            message=self.message,
            load_memory=partial(client_memory, self.snapshot, self.client),
            store_memory=lambda memory: None,
        )
        try:
            reply = run_client(self.context, part, trainer, self.device)
        except _TrainingStarts as start:
            return self._training(trainer, start)
        raise _cannot_train(self.client, reply.error)

    def _training(self, trainer: Trainer, start: _TrainingStarts) -> LocalTraining:
        """Copy the resident model into a method of plain torch, whose gradients have gradients."""
        resident = trainer.method
        constants = dict(start.constants)
        pixels = start.task.pixels
        constants.update(resident.before_epoch(lambda: trainer.embed(pixels)))
        channels, height, width = self.pixels(torch.arange(1)).shape[1:]
        image = (channels, height, width)
        method = build_method(self.federation.experiment, image, self.device)
        method.state.load(resident.state)
        method.train()
        return LocalTraining(method, start.task, start.objective, constants)

    def pixels(self, index: Tensor) -> Tensor:
        """Return images of the client, uint8 (n, C, H, W)."""
        shard = self.federation.shards[self.client].on(self.device)
        if isinstance(shard, Tensor):
            return shard[index.to(shard.device)]
        return next(iter(shard.select(index).chunks(len(index))))

    @property
    def count(self) -> int:
        """The number of images of the client."""
        return self.federation.shards[self.client].images

    def full_round(self) -> RoundUpdate:
        """Train the client for a round, as the run does; return what its upload reveals."""
        train = self.federation.experiment.train
        exact = resolve_precision(train.precision, self.device) == "fp32"
        with numerics(self.device, train.deterministic, exact), threads(train.threads):
            reply = train_client(
                self.federation, self.context, self.snapshot, client=self.client, site=self.site
            )
        if reply.upload is None:
            raise _cannot_train(self.client, reply.error)
        received = self.algorithm.received_keys(reply.upload)
        before: dict[str, Tensor] = {}
        after: dict[str, Tensor] = {}
        for key, value in reply.upload.items():
            if isinstance(value, State):
                sent = model(self.message, received.get(key, key))
                before.update(sent.to(value.floats.device).tensors())
                after.update(value.tensors())
        gradients = [before[name] - after[name] for name in self.parameters]
        return RoundUpdate(gradients, self._batch_statistics(before, after))

    def _batch_statistics(
        self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
    ) -> Statistics:
        """Return the moments of the round's batches that the running statistics reveal."""
        statistics = {}
        for layer in self.statistics:
            module = self.federation.trainer.method.get_submodule(layer)
            counter = f"{layer}.num_batches_tracked"
            batches = int(after[counter]) - int(before[counter])
            moments = from_running(
                _moments(before, layer),
                _moments(after, layer),
                batches,
                float(module.momentum),  # type: ignore[arg-type]
            )
            if moments is not None:
                statistics[layer] = moments
        return statistics


class RoundUpdate(NamedTuple):
    """What the upload of a whole round reveals."""

    differences: list[Tensor]  # received − uploaded, of the parameters that are uploaded
    statistics: Statistics


def _moments(tensors: Mapping[str, Tensor], layer: str) -> Moments:
    return Moments(tensors[f"{layer}.running_mean"], tensors[f"{layer}.running_var"])


def _cannot_train(client: str, reason: str | None) -> ConfigError:
    return ConfigError(
        f"client {client} cannot train, so its updates cannot be attacked: {reason}. Choose "
        "another with --set client=NAME"
    )
