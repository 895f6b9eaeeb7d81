"""A federation whose nodes are functions: messages are turned into bytes and back as Flower does it, and no socket is
opened."""

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

from fedssl.experiment import Experiment
from fedssl.runtimes.flower import client_app
from fedssl.runtimes.flower.serve import ServerSettings, serve

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

# Algorithm, method, settings of each: those whose bits are the same wherever they run.
CASES = {
    "fedavg": ("fedavg", "simclr", "", ""),
    "fedu": ("fedu", "byol", "", ""),
    "fedema": ("fedema", "byol", "", ""),
    "fedca": ("fedca", "simclr", "dictionary = 12\naligned = 4", ""),
    "ccl": ("ccl", "mocov2", "neighbours = 3\ncandidates = 8", "queue = 16"),
    "featarc": ("featarc", "simclr", "", ""),
    "fedbn": ("fedbn", "simclr", "", ""),
}


class FakeGrid:
    """Nodes as functions. All nodes work when the server looks for any answer: they do not wait for their turn.

    `wire` has every byte that was handed over, by content: what was sent before is not sent again.
    """

    def __init__(self, nodes: dict[int, Callable[[Message], Message | None]]) -> None:
        self.nodes, self.wire, self.answers = nodes, dict[str, bytes](), dict[str, list[Message]]()
        self.waiting: dict[str, Message] = {}
        self.names: dict[int, str] = {}  # that keys were registered with
        self.keys: dict[int, bytes] = {}  # public keys
        self.sent: list[Message] = []
        self.on_push: Callable[[Message], None] = lambda message: None

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(node_id=node, name=self.names.get(node, ""), public_key=self.keys.get(node, b""))
            for node in self.nodes
        ]

    def _carried(self, message: Message) -> Message:
        contents = {key: value.deflate() for key, value in get_all_nested_objects(message).items()}
        self.wire |= contents
        arrived = inflate_object_from_contents(message.object_id, dict(contents))
        arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
        return arrived

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self.on_push(message)
            message.metadata.__dict__["_message_id"] = message.object_id
            self.sent.append(message)
            self.waiting[message.object_id] = self._carried(message)
            ids.append(message.object_id)
        return ids

    def _work(self) -> None:
        """Let every node answer the messages that wait for it."""
        for id, asked in list(self.waiting.items()):
            node = self.nodes.get(asked.metadata.dst_node_id)
            answer = Message(Error(3, "node unavailable"), reply_to=asked) if node is None else node(asked)
            if answer is not None:
                del self.waiting[id]
                self.answers[id] = [self._carried(answer)]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self._work()
        return [answer for id in message_ids for answer in self.answers.pop(id, [])]


def tiny(algorithm: str, method: str, settings: str = "", more: str = "", **changes: Any) -> Experiment:
    text = TINY.format(algorithm=algorithm, method=method, settings=settings, more=more)
    experiment = Experiment.from_toml(text).with_changes(changes)
    experiment.check()
    return experiment


def edited(handler: Callable[[Message], Message | None], kind: str, **changes: Any) -> Callable[..., Message | None]:
    """A node whose answers to one kind of message say something else than it means; metrics are changed one by one."""

    def lie(message: Message) -> Message | None:
        answer = handler(message)
        if message.metadata.message_type == kind and answer is not None:
            said = json.loads(answer.content["fedssl"]["json"])
            for key, value in changes.items():
                both = isinstance(value, dict) and isinstance(said.get(key), dict)
                said[key] = {**said[key], **value} if both else value
            answer.content["fedssl"] = ConfigRecord({"json": json.dumps(said)})
        return answer

    return lie


class Nodes:
    """A folder with images, and what it takes to run an experiment on them by way of Flower's objects."""

    def __init__(self, root: Path) -> None:
        self.root = root
        random = np.random.default_rng(0)
        labels = np.arange(48) % 3
        images = (random.integers(0, 80, (48, 12, 12, 3)) + labels[:, None, None, None] * 60).astype(np.uint8)
        (root / "data").mkdir(exist_ok=True)
        np.savez(root / "data/tiny.npz", x_train=images, y_train=labels, x_test=images[:24], y_test=labels[:24])

    def node(self, app: ClientApp, number: int, client: str, **config: Any) -> Callable[[Message], Message]:
        place = {"data-dir": str(self.root / "data"), "memory-dir": str(self.root / "memory"), "images": "dealt"}
        context = Context(1, number, {"client-id": client, **place, **config}, RecordDict(), {})
        return lambda message: app(message, context)

    def grid(self, experiment: Experiment, **config: Any) -> FakeGrid:
        app = client_app(experiment)
        return FakeGrid({10 + i: self.node(app, 10 + i, str(i), **config) for i in range(experiment.clients)})

    def dealt(self, experiment: Experiment, count: int) -> FakeGrid:
        """Clients dealt to fewer nodes, or more, than there are of them."""
        app, place = (
            client_app(experiment),
            {"data-dir": str(self.root / "data"), "memory-dir": str(self.root / "memory")},
        )
        parts = [{**place, "partition-id": i, "num-partitions": count} for i in range(count)]
        contexts = {10 + i: Context(1, 10 + i, part, RecordDict(), {}) for i, part in enumerate(parts)}
        return FakeGrid({node: lambda message, at=at: app(message, at) for node, at in contexts.items()})

    def serve(self, experiment: Experiment, grid: FakeGrid, folder: str = "flower", **settings: Any) -> list[str]:
        """What the server has said."""
        said: list[str] = []
        given = {"run-dir": str(self.root / folder), "join-timeout": 0.2, "round-timeout": 20, "device": "cpu"}
        given |= {key.replace("_", "-"): value for key, value in settings.items()}
        serve(experiment, grid, ServerSettings.read(given), said.append)
        return said
