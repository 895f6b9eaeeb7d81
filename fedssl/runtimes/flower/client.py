"""The client's half of an app: a ClientApp that says hello, and trains when it is asked to."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedssl.experiment import Experiment
from fedssl.guard import Reply
from fedssl.runtimes.flower.codec import decode, encode
from fedssl.runtimes.flower.node import Node, Place, told
from fedssl.runtimes.flower.words import Task, put_hello, put_refusal, put_reply, task_in
from fedssl.tree import Tree


@lru_cache(maxsize=1)  # Flower's simulation has one process do many clients' work; a SuperNode's process does one thing
def _node(experiment: str, place: Place) -> Node:
    return Node(Experiment.from_toml(experiment), place)


def client_app(experiment: Experiment | str | Path) -> ClientApp:
    """A ClientApp for an experiment, or for the TOML file that has it."""
    chosen = experiment if isinstance(experiment, Experiment) else Experiment.from_file(Path(experiment))
    toml, app = chosen.to_toml(), ClientApp()

    def node(context: Context) -> Node:
        return _node(toml, Place.read(context.node_config, context.run_config))

    def hello(message: Message, context: Context) -> Message:
        content = told(lambda: put_hello(node(context).hello()), put_refusal)
        return Message(content, reply_to=message)

    def train(message: Message, context: Context) -> Message:
        return answer(message, lambda task, tree: node(context).train(task, tree))

    def keep(message: Message, context: Context) -> Message:
        return answer(message, lambda task, tree: node(context).keep(task, tree))

    app.query("hello")(hello)
    app.query("keep")(keep)
    app.train()(train)
    return app


def answer(message: Message, work: Callable[[Task, Tree], Reply]) -> Message:
    """A reply to a message with a task and a tree."""
    task = task_in(message.content)
    reply = told(
        lambda: work(task, decode(message.content)),
        lambda reason: Reply(task.client, 0, None, None, reason),
    )
    content = RecordDict() if reply.upload is None else encode(reply.upload)
    return Message(put_reply(content, task, reply), reply_to=message)
