"""The client's half of an app: a ClientApp that says hello, and trains when it is asked to."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedssl.errors import ClientError, ConfigError, DataError
from fedssl.experiment import Experiment
from fedssl.guard import Reply
from fedssl.runtimes.flower.codec import decode, encode
from fedssl.runtimes.flower.node import Node, Place
from fedssl.runtimes.flower.words import Task, notice_in, put_hello, put_refusal, put_reply, task_in
from fedssl.tree import Tree

T = TypeVar("T")


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
        named = [str(context.node_config["client-id"])] if "client-id" in context.node_config else []
        content = told(
            lambda: put_hello(node(context).hello()),
            lambda reason: put_refusal(reason, named),
        )
        return Message(content, reply_to=message)

    def notice(message: Message, context: Context) -> Message:
        print(f"notice from the server: {notice_in(message.content)}", file=sys.stderr, flush=True)
        return Message(RecordDict(), reply_to=message)

    def train(message: Message, context: Context) -> Message:
        return answer(message, lambda task, tree: node(context).train(task, tree))

    def keep(message: Message, context: Context) -> Message:
        return answer(message, lambda task, tree: node(context).keep(task, tree))

    app.query("hello")(hello)
    app.query("keep")(keep)
    app.query("notice")(notice)
    app.train()(train)
    return app


def answer(message: Message, work: Callable[[Task, Tree], Reply]) -> Message:
    """A reply to a message with a task and a tree. Nothing is raised here: Flower would send the error's text."""

    def reply() -> RecordDict:
        task = task_in(message.content)
        return told(
            lambda: _content(task, work(task, decode(message.content))),
            lambda reason: _content(task, Reply(task.client, 0, None, None, reason)),
        )

    return Message(told(reply, put_refusal), reply_to=message)


def _content(task: Task, reply: Reply) -> RecordDict:
    return put_reply(RecordDict() if reply.upload is None else encode(reply.upload), task, reply)


def told(work: Callable[[], T], otherwise: Callable[[str], T]) -> T:
    """What some work gives, or what follows from the reason why it failed.

    The whole story goes to the node's own log. The server is told what was written for it, a ClientError; anything else
    may give away a file's name or a path.
    """
    try:
        return work()
    except ClientError as problem:
        reason = str(problem)
        print(reason, file=sys.stderr, flush=True)
    except DataError:
        reason = "its images cannot be read; its own log says why"
        traceback.print_exc(file=sys.stderr)
    except ConfigError:
        reason = "its settings do not work there; its own log says why"
        traceback.print_exc(file=sys.stderr)
    except Exception as problem:
        reason = f"{type(problem).__name__}; its own log says more"
        traceback.print_exc(file=sys.stderr)
    return otherwise(reason)
