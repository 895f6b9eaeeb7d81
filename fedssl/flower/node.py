"""A node: the images and the model of its clients, and one round of training per message."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch

from fedssl.core.console import ignore_message, names_hidden, print_to_stderr
from fedssl.core.devices.precision import numerics
from fedssl.core.devices.select import resolve_device, training_devices
from fedssl.core.errors import ClientError, ConfigError
from fedssl.core.state.tree import Tree
from fedssl.core.suggestions import suggest
from fedssl.core.version import __version__
from fedssl.data import Dataset, HeldOut
from fedssl.engine.runtimes.client_round import ClientRound, RunContext, Shard, run_client
from fedssl.engine.uploads.records import Reply
from fedssl.experiment import federation_setup
from fedssl.experiment.client_data import partition_data, read_data, read_public
from fedssl.experiment.experiment import Experiment
from fedssl.flower.deadline import training_deadline
from fedssl.flower.frozen_weights import own_init_sha256
from fedssl.flower.messages import Hello, RoundTask
from fedssl.flower.node_memory import NodeMemory
from fedssl.runs.client_files import default_node_memory
from fedssl.training.trainer import Trainer, resolve_precision

MASKED_ONLY = (
    "this node has secure-aggregation='required' in its --node-config and sends no upload without "
    "a mask: set secure-aggregation = true in the app's config"
)
NODE_KEYS = (
    "client-id",
    "data-dir",
    "memory-dir",
    "images",
    "device",
    "secure-aggregation",
    "init",
    "partition-id",
    "num-partitions",
)
FINGERPRINT_IMAGES = 64  # images that are hashed to detect changed data


class NodeConfig(NamedTuple):
    """A node's configuration: `--node-config "client-id='a' data-dir='/srv/images'"`.

    With images `own`, all images that the experiment's [data] finds under `data` belong to this
    client. With `dealt`, the images of all clients are there, and this client has those that the
    experiment's partition assigns to it; for trials on one machine. There a node may have
    `partition-id` and `num-partitions`, as in Flower's simulation, instead of a client-id: clients
    are assigned to the nodes in turn, and a node with several trains them one after another.
    """

    client: str | None  # None: every `parts`-th client of the partition, from the `part`-th on
    part: int
    parts: int
    data: Path
    memory: Path
    images: Literal["own", "dealt"]
    device: str
    masked_only: bool = False  # True: uploads leave this node only for a secure sum
    init: Path | None = None  # this node's file of `method.init`; None: as in the experiment

    @classmethod
    def read(cls, node: Mapping[str, Any], run: Mapping[str, Any]) -> Self:
        """Return a node's configuration.

        Flower's simulation has no node configuration, so folders are read from the run's. On a real
        node, the run cannot choose where the node reads and writes.
        """
        for key in node:
            if key not in NODE_KEYS:
                raise ConfigError(
                    f'unknown key "{key}" in a node\'s configuration{suggest(key, NODE_KEYS)}; '
                    f"known: {', '.join(NODE_KEYS)}"
                )
        simulated = "client-id" not in node and "partition-id" in node
        if not simulated and "client-id" not in node:
            raise ConfigError("a SuperNode needs client-id and data-dir in its --node-config")
        images = str(node.get("images", "dealt" if simulated else "own"))
        if images not in ("own", "dealt"):
            raise ConfigError(
                f"images='{images}' in a node's configuration must be 'own' or 'dealt'"
            )
        fallback = run if simulated else {}
        data = node.get("data-dir") or fallback.get("data-dir") or "data"
        memory = node.get("memory-dir") or fallback.get("memory-dir") or default_node_memory()
        return cls(
            client=None if simulated else str(node["client-id"]),
            part=int(node.get("partition-id", 0)),
            parts=int(node.get("num-partitions", 1)),
            data=Path(str(data)).expanduser(),
            memory=Path(str(memory)).expanduser(),
            images="own" if images == "own" else "dealt",
            device=str(node.get("device", "auto")),
            masked_only=_masked_only(node),
            init=Path(str(node["init"])).expanduser() if "init" in node else None,
        )


def _masked_only(node: Mapping[str, Any]) -> bool:
    """Return whether a node requires secure aggregation."""
    choice = str(node.get("secure-aggregation", "allowed"))
    if choice not in ("allowed", "required"):
        raise ConfigError(
            f"secure-aggregation='{choice}' in a node's configuration must be 'allowed' or "
            "'required'"
        )
    return choice == "required"


class Node:
    """The images and the model of a node's clients; nothing is read before it is needed."""

    def __init__(self, experiment: Experiment, config: NodeConfig) -> None:
        device = training_devices(resolve_device(config.device))[0]
        precision = resolve_precision(experiment.train.precision, device)
        changes = {"train.precision": precision}
        if config.init is not None and experiment.method.init is not None:
            changes["method.init"] = str(config.init)
        self.experiment = experiment.with_changes(changes)
        self.device = device
        self._config = config

    @cached_property
    def _data(self) -> Dataset:
        with names_hidden():
            return read_data(self.experiment, self._config.data, None, print_to_stderr)

    @cached_property
    def _client_images(self) -> tuple[Dataset, dict[str, torch.Tensor]]:
        """The images as clients see them, and the rows of each client on this node."""
        e = self.experiment
        data = self._data
        if self._config.images == "dealt":
            return self._dealt_images(data)
        if e.algorithm.needs_public and isinstance(e.public, HeldOut):
            raise ClientError(
                "[public] must name a data set that every node has: "
                "a node cannot hold out images of all clients"
            )
        if e.data.leave_out:
            raise ClientError(
                "data.leave_out needs the labels of all clients, but a node has only its own images"
            )
        assert self._config.client is not None
        return data, {self._config.client: torch.arange(len(data.train))}

    def _dealt_images(self, data: Dataset) -> tuple[Dataset, dict[str, torch.Tensor]]:
        config = self._config
        seen, owners = partition_data(self.experiment, data, ignore_message)
        if config.client is None:
            clients = sorted(owners)[config.part :: config.parts]
        else:
            clients = [config.client]
        if not clients:
            raise ClientError(
                "more nodes than clients: "
                f"no client is left for node {config.part} of {config.parts}"
            )
        if clients[0] not in owners:
            raise ClientError(
                f'the partition has no client "{clients[0]}"; its clients are {", ".join(owners)}'
            )
        return seen, {client: owners[client] for client in clients}

    @cached_property
    def shards(self) -> dict[str, Shard]:
        """The shards of the clients on this node."""
        return federation_setup.shards(*self._client_images, [self.device])

    @cached_property
    def trainer(self) -> Trainer:
        """The trainer that all clients on this node use."""
        return Trainer(
            federation_setup.build_method(
                self.experiment, self._data.train.image_shape, self.device
            ),
            self.experiment.train,
        )

    @cached_property
    def _context(self) -> RunContext:
        e = self.experiment
        public = read_public(e, self._data, self._config.data, ignore_message)
        by_device = {}
        if public is not None:
            by_device[self.device] = public.to(self.device)
        return RunContext(
            e.algorithm, e.seed, federation_setup.round_positions(e), by_device, threading.Event()
        )

    def _fingerprint(self, client: str) -> str:
        """Return a hash of the number of a client's images and of an evenly spaced sample.

        Hashing all images for each message would take too long.
        """
        seen, owners = self._client_images
        rows = owners[client]
        size = min(FINGERPRINT_IMAGES, len(rows))
        sample = rows[torch.linspace(0, len(rows) - 1, size).long()]
        digest = hashlib.sha256(json.dumps([len(rows), *seen.train.image_shape]).encode())
        for part in seen.train.pixel_rows.select(sample).chunks(FINGERPRINT_IMAGES):
            digest.update(part.numpy().data)
        return digest.hexdigest()

    def hello(self) -> Hello:
        """Return the description of this node that the server asks for before training."""
        init_sha256 = own_init_sha256(self.experiment.method)
        layout = self.trainer.method.state.layout.entries
        clients = {client: shard.images for client, shard in self.shards.items()}
        return Hello(
            clients,
            self._data.train.image_shape,
            layout,
            version=__version__,
            masked_only=self._config.masked_only,
            init_sha256=init_sha256,
        )

    def train(self, task: RoundTask, message: Tree) -> Reply:
        """Train a client for one round and return its upload, unless the node must mask it."""
        if self._config.masked_only:
            raise ClientError(MASKED_ONLY)
        return self.train_round(task, message)

    def train_round(self, task: RoundTask, message: Tree) -> Reply:
        """Train a client for one round; its state is on disk before the upload is returned."""
        memory = self.open_memory(task)
        settings = self.experiment.train
        memory.check_images(self._fingerprint(task.client))
        torch.set_num_threads(settings.threads)
        with (
            numerics(self.device, settings.deterministic, settings.precision == "fp32"),
            training_deadline(task.until, memory.holds_claim) as stop,
        ):
            return run_client(
                replace(self._context, stop=stop),
                ClientRound(
                    client=task.client,
                    round=task.round,
                    shard=self.shards[task.client],
                    message=message,
                    load_memory=memory.read,
                    store_memory=memory.write,
                ),
                self.trainer,
                self.device,
            )

    def open_memory(self, task: RoundTask) -> NodeMemory:
        """Return the memory of a task's client; raises if it is not here or the task is late."""
        if task.client not in self.shards:
            raise ClientError(
                f'this node is client "{", ".join(self.shards)}", not "{task.client}"'
            )
        if time.time() >= task.until:
            raise ClientError(
                "the round's deadline had passed before this client began; "
                "if this happens often, check the node's clock"
            )
        return NodeMemory(self._config.memory, task)

    def save_own_model(self, task: RoundTask, message: Tree) -> Reply:
        """Make a client's own model and export its backbone to the client's memory folder."""
        from fedssl.evaluation.models import export

        memory = self.open_memory(task)
        state = self.experiment.algorithm.personal(message, memory.read())
        if state is None:
            raise ClientError("it has not taken part in any round")
        export(
            self.experiment,
            memory.folder,
            {task.client: state},
            self._data.train.image_shape,
            task.round,
            [],
        )
        return Reply(task.client, self.shards[task.client].images, {}, None, round=task.round)
