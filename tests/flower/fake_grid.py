"""A federation whose nodes are functions.

Messages are serialized and deserialized as Flower does it, but no socket is opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedssl.core.state.codec import dumps
from fedssl.engine.checkpoints.store import Store
from fedssl.experiment.experiment import Experiment
from fedssl.flower import client_app
from fedssl.flower.node import NodeConfig
from fedssl.flower.serve import serve
from fedssl.flower.server_settings import ServerSettings
from fedssl.runs.rounds_log import read_rounds

TINY = """
rounds = 3
clients = 3
seed = 7
[data]
name = "npz"
path = "tiny.npz"
[method]
name = "{method}"
backbone = "cnn"
hidden = 16
dim = 8
{more}
[algorithm]
name = "{algorithm}"
{settings}
[train]
batch = 8
checkpoint_every = 0
[probe]
every = 0
linear = false
"""

# Algorithm, method, and settings of each, for algorithms with the same bits on every runtime.
CASES = {
    "fedavg": ("fedavg", "simclr", "", ""),
    "fedu": ("fedu", "byol", "", ""),
    "fedema": ("fedema", "byol", "", ""),
    "fedca": ("fedca", "simclr", "dictionary = 12\naligned = 4", ""),
    "ccl": ("ccl", "mocov2", "neighbours = 3\ncandidates = 8", "queue = 16"),
    "featarc": ("featarc", "simclr", "", ""),
    "fedbn": ("fedbn", "simclr", "", ""),
}

Handler = Callable[[Message], Message | None]


def serialized(message: Message) -> dict[str, bytes]:
    """Return the objects of a message as bytes, by content hash."""
    return {key: value.deflate() for key, value in get_all_nested_objects(message).items()}


def trains(message: Message) -> bool:
    """True if a message asks a client to train."""
    return message.metadata.message_type == "train"


def is_task(message: Message, node: int, round: int) -> bool:
    """True if a message asks a node to train in a round."""
    metadata = message.metadata
    return trains(message) and metadata.dst_node_id == node and metadata.group_id == str(round)


def without_training(handler: Handler) -> Handler:
    """Return a node that does not answer when it is asked to train."""
    return lambda message: None if trains(message) else handler(message)


class FakeGrid:
    """A grid whose nodes are functions; whenever the server pulls answers, all nodes work.

    `wire` has all bytes that were transferred, by content: equal objects are sent once.
    """

    def __init__(self, nodes: dict[int, Handler]) -> None:
        self.nodes = nodes
        self.wire: dict[str, bytes] = {}
        self.answers: dict[str, list[Message]] = {}
        self.waiting: dict[str, Message] = {}
        self.names: dict[int, str] = {}  # that keys were registered with
        self.keys: dict[int, bytes] = {}  # public keys
        self.sent: list[Message] = []
        self.on_push: Callable[[Message], None] = lambda message: None

    def get_nodes(self) -> list[NodeInfo]:
        """Return the connected nodes."""
        infos = []
        for node in self.nodes:
            name = self.names.get(node, "")
            key = self.keys.get(node, b"")
            infos.append(NodeInfo(node_id=node, name=name, public_key=key))
        return infos

    def _transfer(self, message: Message) -> Message:
        contents = serialized(message)
        self.wire |= contents
        received = inflate_object_from_contents(message.object_id, contents)
        received.metadata.__dict__["_message_id"] = message.metadata.message_id
        return received

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages and return their ids."""
        ids = []
        for message in messages:
            self.on_push(message)
            message.metadata.__dict__["_message_id"] = message.object_id
            self.sent.append(message)
            self.waiting[message.object_id] = self._transfer(message)
            ids.append(message.object_id)
        return ids

    def _work(self) -> None:
        """Let every node answer the messages that wait for it."""
        for message_id, message in list(self.waiting.items()):
            node = self.nodes.get(message.metadata.dst_node_id)
            if node is None:
                answer: Message | None = Message(Error(3, "node unavailable"), reply_to=message)
            else:
                answer = node(message)
            if answer is not None:
                del self.waiting[message_id]
                self.answers[message_id] = [self._transfer(answer)]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the answers to messages."""
        self._work()
        answers = []
        for message_id in message_ids:
            answers += self.answers.pop(message_id, [])
        return answers

    def receivers(self, kind: str) -> list[int]:
        """Return the nodes that messages of one type were sent to."""
        sent = [message.metadata for message in self.sent]
        return [metadata.dst_node_id for metadata in sent if metadata.message_type == kind]

    def contains(self, data: bytes) -> bool:
        """True if some transferred object contains these bytes."""
        return any(data in content for content in self.wire.values())


class FlickeringGrid(FakeGrid):
    """All nodes but the first are absent for the next `away` lookups."""

    away = 0

    def get_nodes(self) -> list[NodeInfo]:
        self.away -= 1
        nodes = super().get_nodes()
        if self.away > 0:
            return nodes[:1]
        return nodes


def tiny(
    algorithm: str, method: str, settings: str = "", more: str = "", **changes: Any
) -> Experiment:
    """Return a small experiment."""
    text = TINY.format(algorithm=algorithm, method=method, settings=settings, more=more)
    experiment = Experiment.from_toml(text).with_changes(changes)
    experiment.check()
    return experiment


def edited(handler: Handler, kind: str, **changes: Any) -> Handler:
    """Return a node that changes values in its answers to one type of message.

    Values in a dictionary, such as metrics, are changed one by one.
    """

    def edit(message: Message) -> Message | None:
        answer = handler(message)
        if message.metadata.message_type == kind and answer is not None:
            values = json.loads(answer.content["fedssl"]["json"])
            for key, value in changes.items():
                if isinstance(value, dict) and isinstance(values.get(key), dict):
                    values[key] = {**values[key], **value}
                else:
                    values[key] = value
            answer.content["fedssl"] = ConfigRecord({"json": json.dumps(values)})
        return answer

    return edit


def site_bits(folder: Path) -> dict[str, bytes]:
    """Return the sites of a run's last checkpoint as bytes."""
    snapshot = Store(folder).load(lambda line: None)
    assert snapshot is not None
    return {site: dumps(tree) for site, tree in snapshot.sites.items()}


class Nodes:
    """A folder with images, and functions that run an experiment on them with a FakeGrid."""

    def __init__(self, root: Path) -> None:
        self.root = root
        random = np.random.default_rng(0)
        labels = np.arange(48) % 3
        noise = random.integers(0, 80, (48, 12, 12, 3))
        images = (noise + labels[:, None, None, None] * 60).astype(np.uint8)
        (root / "data").mkdir(exist_ok=True)
        np.savez(
            root / "data/tiny.npz",
            x_train=images,
            y_train=labels,
            x_test=images[:24],
            y_test=labels[:24],
        )

    def _folders(self) -> dict[str, str]:
        return {"data-dir": str(self.root / "data"), "memory-dir": str(self.root / "memory")}

    def config(self, client: str) -> NodeConfig:
        """Return the configuration of a node with one client."""
        node = {"client-id": client, **self._folders(), "images": "dealt", "device": "cpu"}
        return NodeConfig.read(node, {})

    def node(
        self, app: ClientApp, number: int, client: str, **config: Any
    ) -> Callable[[Message], Message]:
        """Return a node with one client."""
        values = {"client-id": client, **self._folders(), "images": "dealt", **config}
        context = Context(1, number, values, RecordDict(), {})
        return lambda message: app(message, context)

    def grid(self, experiment: Experiment, **config: Any) -> FakeGrid:
        """Return a grid with a node for each client."""
        app = client_app(experiment)
        nodes = {}
        for i in range(experiment.clients):
            nodes[10 + i] = self.node(app, 10 + i, str(i), **config)
        return FakeGrid(nodes)

    def dealt(self, experiment: Experiment, count: int) -> FakeGrid:
        """Return a grid of `count` nodes to which the clients are assigned in turn."""
        app = client_app(experiment)

        def node(number: int) -> Handler:
            part = {"partition-id": number, "num-partitions": count}
            context = Context(1, 10 + number, {**self._folders(), **part}, RecordDict(), {})
            return lambda message: app(message, context)

        return FakeGrid({10 + number: node(number) for number in range(count)})

    def serve(
        self, experiment: Experiment, grid: FakeGrid, folder: str = "flower", **settings: Any
    ) -> list[str]:
        """Run the server, and return the lines that it printed."""
        lines: list[str] = []
        config = {
            "run-dir": str(self.root / folder),
            "join-timeout": 0.2,
            "round-timeout": 20,
            "device": "cpu",
        }
        config |= {key.replace("_", "-"): value for key, value in settings.items()}
        serve(experiment, grid, ServerSettings.read(config), lines.append)
        return lines

    def dropped(self, folder: str = "flower") -> list[dict[str, str | None]]:
        """Return why clients were dropped, by client, for each round of a run."""
        lines = read_rounds(self.root / folder / "rounds.jsonl")
        return [{c["client"]: c["dropped"] for c in line["clients"]} for line in lines]

    def strict_rounds(self) -> list[dict[str, Any]]:
        """Return the rounds log, which must be strict JSON, without NaN and Infinity."""

        def refuse(constant: str) -> None:
            raise AssertionError(constant)

        text = (self.root / "flower/rounds.jsonl").read_text()
        return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]

    def bits(self, folder: str = "flower") -> dict[str, bytes]:
        """Return the sites of a run's last checkpoint as bytes."""
        return site_bits(self.root / folder)
