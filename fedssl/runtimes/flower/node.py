"""A client on its own machine: its images, its model, and a turn at training when a message asks for it."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch

import fedssl
from fedssl import assemble
from fedssl.data import Dataset, HeldOut
from fedssl.data.progress import say_nothing, say_on_stderr
from fedssl.errors import ClientError, ConfigError
from fedssl.experiment import Experiment
from fedssl.guard import Reply
from fedssl.numerics import numerics
from fedssl.runtimes.attend import Shard, Work, attend
from fedssl.runtimes.flower.awaited import awaited
from fedssl.runtimes.flower.memory import NodeMemory
from fedssl.runtimes.flower.words import Hello, Task
from fedssl.train import Trainer, resolve_precision
from fedssl.tree import Tree

SOME = 64  # images by which to see whether they are the same


class Place(NamedTuple):
    """What a node's operator says of it: `--node-config "client-id='a' data-dir='/srv/images'"`.

    `own`: all images that the experiment's [data] finds under `data` are this client's. `dealt`: everybody's are there,
    and this client's are those that the experiment's partition deals it; for trials on one machine. There a node may
    have `partition-id` and `num-partitions`, as in Flower's simulation, in place of a client-id: clients are dealt to
    the nodes in turn, and a node with several trains them one after another.
    """

    client: str | None  # None: of the clients that the partition makes, every `parts`-th from the `part`-th on
    part: int
    parts: int
    data: Path
    memory: Path
    images: Literal["own", "dealt"]
    device: str

    @classmethod
    def read(cls, node: Mapping[str, Any], run: Mapping[str, Any]) -> Self:
        """From a node's configuration; under Flower's simulation, which has none, from the run's. Elsewhere whoever
        starts a run has no say in where a node reads and writes."""
        simulated = "client-id" not in node and "partition-id" in node
        spare = run if simulated else {}
        images = str(node.get("images", "dealt" if simulated else "own"))
        if not simulated and "client-id" not in node:
            raise ConfigError("a SuperNode must be told its client-id and data-dir with --node-config")
        if images not in ("own", "dealt"):
            raise ConfigError(f"images='{images}' in a node's configuration: it is 'own' or 'dealt'")
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "fedssl/nodes"
        return cls(
            None if simulated else str(node["client-id"]),
            int(node.get("partition-id", 0)),
            int(node.get("num-partitions", 1)),
            Path(str(node.get("data-dir") or spare.get("data-dir") or "data")).expanduser(),
            Path(str(node.get("memory-dir") or spare.get("memory-dir") or state)).expanduser(),
            "own" if images == "own" else "dealt",
            str(node.get("device", "auto")),
        )


class Node:
    """A client's images and its model, ready for a turn. Reads nothing before somebody asks."""

    def __init__(self, experiment: Experiment, place: Place) -> None:
        device = assemble.training_devices(assemble.resolve_device(place.device))[0]
        precision = resolve_precision(experiment.train.precision, device)
        self.experiment, self.device, self._place = (
            experiment.with_changes({"train.precision": precision}),
            device,
            place,
        )

    @cached_property
    def _data(self) -> Dataset:
        return assemble.read_data(self.experiment, self._place.data, None, say_on_stderr)

    @cached_property
    def _mine(self) -> tuple[Dataset, dict[str, torch.Tensor]]:
        """The images as clients see them, and which of them belong to each client that lives here."""
        e, place, data = self.experiment, self._place, self._data
        if place.images == "dealt":
            seen, owners = assemble.deal(e, data, say_nothing)
            here = sorted(owners)[place.part :: place.parts] if place.client is None else [place.client]
            if not here:
                raise ClientError(f"more nodes than clients: none is left for node {place.part} of {place.parts}")
            if here[0] not in owners:
                raise ClientError(f'no images are dealt to client-id "{here[0]}"; clients are {", ".join(owners)}')
            return seen, {client: owners[client] for client in here}
        if e.algorithm.needs_public and isinstance(e.public, HeldOut):
            raise ClientError("[public] must name a data set that every node has: none can be held out of all here")
        if e.data.leave_out:
            raise ClientError("data.leave_out needs everybody's labels, and a node has its own images only")
        assert place.client is not None
        return data, {place.client: torch.arange(len(data.train))}

    @cached_property
    def shards(self) -> dict[str, Shard]:
        """Of the clients that live here."""
        return assemble.shards(*self._mine, [self.device])

    @cached_property
    def trainer(self) -> Trainer:
        return Trainer(
            assemble.build_method(self.experiment, self._data.train.image, self.device), self.experiment.train
        )

    @cached_property
    def _work(self) -> Work:
        e = self.experiment
        public = assemble.read_public(e, self._data, self._place.data, say_nothing)
        here = {} if public is None else {self.device: public.to(self.device)}
        return Work(e.algorithm, e.seed, assemble.pace(e), here, threading.Event())

    def _fingerprint(self, client: str) -> str:
        """Of how many images it has, and of some of them, evenly spread: all would take long, for each message."""
        seen, owners = self._mine
        rows = owners[client]
        some = rows[torch.linspace(0, len(rows) - 1, min(SOME, len(rows))).long()]
        digest = hashlib.sha256(json.dumps([len(rows), *seen.train.image]).encode())
        for part in seen.train.held.select(some).chunks(SOME):
            digest.update(part.numpy().data)
        return digest.hexdigest()

    def hello(self) -> Hello:
        layout = self.trainer.method.state.layout
        clients = {client: shard.images for client, shard in self.shards.items()}
        return Hello(clients, self._data.train.image, layout, fedssl.__version__)

    def train(self, task: Task, message: Tree) -> Reply:
        """One attempt at a round. What it remembers is on the disk before the upload leaves."""
        memory, settings = self._memory(task), self.experiment.train
        memory.agree(self._fingerprint(task.client))
        torch.set_num_threads(settings.threads)
        with (
            numerics(self.device, settings.deterministic, settings.precision == "fp32"),
            awaited(task.until, memory.mine) as stop,
        ):
            return attend(
                self._work._replace(stop=stop),
                task.client,
                task.round,
                self.shards[task.client],
                self.trainer,
                message,
                memory.read,
                memory.write,
                self.device,
            )

    def _memory(self, task: Task) -> NodeMemory:
        """What a client of this node remembers, for a task that is for it and that somebody still waits for."""
        if task.client not in self.shards:
            raise ClientError(f'this node is client "{", ".join(self.shards)}", not "{task.client}"')
        if time.time() >= task.until:
            raise ClientError("the round's time was up before this client began; if that happens often, see its clock")
        return NodeMemory(self._place.memory, task)

    def keep(self, task: Task, message: Tree) -> Reply:
        """Make the model of a client's own, and leave its backbone beside what the client remembers."""
        from fedssl.models import export

        memory = self._memory(task)
        state = self.experiment.algorithm.personal(message, memory.read())
        if state is None:
            raise ClientError("has no model of its own: it has not taken part in any round")
        export(self.experiment, memory.folder, {task.client: state}, self._data.train.image, task.round, [])
        return Reply(task.client, self.shards[task.client].images, {}, None, round=task.round)
