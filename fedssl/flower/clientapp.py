"""The clients' half of an app: a ClientApp that answers the messages of messages.py."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedssl.core.errors import ClientError, ConfigError, DataError
from fedssl.core.state.tree import Tree
from fedssl.engine.uploads.records import Reply
from fedssl.experiment.experiment import Experiment
from fedssl.flower.app_experiment import read_experiment
from fedssl.flower.codec import decode, encode
from fedssl.flower.messages import (
    SECURE_PHASES,
    RoundTask,
    pack_hello,
    pack_refusal,
    pack_reply,
    unpack_notice,
    unpack_task,
)
from fedssl.flower.node import Node, NodeConfig

T = TypeVar("T")


# A SuperNode's process handles one message; one process of Flower's simulation handles the messages
# of many clients.
@lru_cache(maxsize=1)
def _cached_node(experiment: str, config: NodeConfig) -> Node:
    return Node(Experiment.from_toml(experiment), config)


def client_app(experiment: Experiment | str | Path, imports: Sequence[str] = ()) -> ClientApp:
    """Return a ClientApp for an experiment or its TOML file.

    `imports` are modules to import first: dotted names, or files in the folder of the TOML file.
    """
    toml = read_experiment(experiment, imports).to_toml()
    app = ClientApp()

    def node(context: Context) -> Node:
        return _cached_node(toml, NodeConfig.read(context.node_config, context.run_config))

    def hello(message: Message, context: Context) -> Message:
        names = []
        if "client-id" in context.node_config:
            names.append(str(context.node_config["client-id"]))
        content = run_or_refuse(
            lambda: pack_hello(node(context).hello()),
            lambda reason: pack_refusal(reason, names),
        )
        return Message(content, reply_to=message)

    def notice(message: Message, context: Context) -> Message:
        text = unpack_notice(message.content)
        print(f"notice from the server: {text}", file=sys.stderr, flush=True)
        return Message(RecordDict(), reply_to=message)

    def train(message: Message, context: Context) -> Message:
        return answer(message, lambda task, tree: node(context).train(task, tree))

    def keep(message: Message, context: Context) -> Message:
        return answer(message, lambda task, tree: node(context).save_own_model(task, tree))

    app.query("hello")(hello)
    app.query("keep")(keep)
    app.query("notice")(notice)
    app.train()(train)
    _add_secure_phases(app, node)
    return app


def _add_secure_phases(app: ClientApp, node: Callable[[Context], Node]) -> None:
    """Let an app answer the messages of secure aggregation."""

    def phase(message: Message, context: Context) -> Message:
        # Imported now: most runs do not need it.
        from fedssl.flower.secure_aggregation.handlers import handle

        content = run_or_refuse(
            lambda: handle(message, unpack_task(message.content), node(context)), pack_refusal
        )
        return Message(content, reply_to=message)

    for kind in SECURE_PHASES:
        category, action = kind.split(".")
        getattr(app, category)(action)(phase)


def answer(message: Message, work: Callable[[RoundTask, Tree], Reply]) -> Message:
    """Return the reply to a message with a task and a tree.

    Never raises: Flower would send the text of the error to the server.
    """

    def reply() -> RecordDict:
        task = unpack_task(message.content)
        return run_or_refuse(
            lambda: _content(task, work(task, decode(message.content))),
            lambda reason: _content(task, Reply(task.client, 0, None, metrics=None, error=reason)),
        )

    return Message(run_or_refuse(reply, pack_refusal), reply_to=message)


def _content(task: RoundTask, reply: Reply) -> RecordDict:
    if reply.upload is None:
        records = RecordDict()
    else:
        records = encode(reply.upload)
    return pack_reply(records, task, reply)


def run_or_refuse(work: Callable[[], T], refuse: Callable[[str], T]) -> T:
    """Return the result of `work`, or of `refuse` with the reason why `work` failed.

    The traceback is written to the node's log. The server receives the text of a ClientError, which
    is meant for it; the text of any other error may contain the name of a file.
    """
    try:
        return work()
    except ClientError as problem:
        reason = str(problem)
        print(reason, file=sys.stderr, flush=True)
    except DataError:
        reason = "its images cannot be read; see the node's log"
        traceback.print_exc(file=sys.stderr)
    except ConfigError:
        reason = "its settings do not work on this node; see the node's log"
        traceback.print_exc(file=sys.stderr)
    except Exception as problem:
        reason = f"{type(problem).__name__}; see the node's log"
        traceback.print_exc(file=sys.stderr)
    return refuse(reason)
