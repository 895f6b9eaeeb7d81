"""What server and nodes say to each other beside Trees: small frozen values, as one flat record each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, RecordDict

from fedssl.guard import Reply
from fedssl.layout import Layout
from fedssl.train import Metrics
from fedssl.tree import layout_of, list_entries

WORDS = "fedssl"
HELLO, TRAIN, KEEP = "query.hello", "train", "query.keep"  # Flower's message types
MOST_TEXT = 500  # of a stranger's reason, in the log


class Task(NamedTuple):
    """What a node is asked to do: one attempt of a client at a round of a run.

    A run that goes on after its server was killed is another attempt at it. `starts` has, for each attempt so far, the
    round it began with: what a client remembers of later rounds of an earlier attempt belongs to a past that is no
    more. The server may go back to round `oldest` but not further.
    """

    run: str
    client: str
    round: int
    attempt: int
    starts: tuple[int, ...] = (0,)
    oldest: int = 0


class Hello(NamedTuple):
    """What a node tells of itself before any training, and nothing of its images but how many and of which shape."""

    client: str
    images: int
    image: tuple[int, int, int]
    layout: Layout  # of the model it will train
    version: str  # of fedssl


def _record(**values: Any) -> ConfigRecord:
    return ConfigRecord({"json": json.dumps(values)})


def _values(records: RecordDict) -> dict[str, Any]:
    found = json.loads(str(records[WORDS]["json"]))
    if not isinstance(found, dict):
        raise ValueError("not a record of fedssl's")
    return found


def put_task(records: RecordDict, task: Task) -> RecordDict:
    records[WORDS] = _record(**task._asdict())
    return records


def task_in(records: RecordDict) -> Task:
    found = _values(records)
    return Task(**{**found, "starts": tuple(found["starts"])})


def put_hello(hello: Hello) -> RecordDict:
    return RecordDict({WORDS: _record(**{**hello._asdict(), "layout": list_entries(hello.layout)})})


def put_refusal(reason: str) -> RecordDict:
    """Of a node that cannot even say hello."""
    return RecordDict({WORDS: _record(error=reason)})


def hello_in(records: RecordDict) -> Hello | str:
    """A node's hello, or why there is none."""
    try:
        found = _values(records)
        if "error" in found:
            return str(found["error"])[:MOST_TEXT]
        client, images, version = found["client"], found["images"], found["version"]
        channels, height, width = (int(n) for n in found["image"])
        if not isinstance(client, str) or not client or type(images) is not int or images < 0:
            return "its hello makes no sense"
        return Hello(client, images, (channels, height, width), layout_of(found["layout"]), str(version))
    except Exception as problem:  # a stranger may have written anything
        return f"its hello cannot be read ({type(problem).__name__})"


def put_reply(records: RecordDict, task: Task, reply: Reply) -> RecordDict:
    """Beside the upload, if there is one."""
    records[WORDS] = _record(
        run=task.run,
        client=task.client,
        round=task.round,
        attempt=task.attempt,
        images=reply.images,
        error=reply.error,
        metrics=None if reply.metrics is None else reply.metrics._asdict(),
        notes=dict(reply.notes),
    )
    return records


def reply_in(records: RecordDict, task: Task) -> Reply:
    """A client's reply, but for its upload; a ValueError if it answers something else."""
    found = _values(records)
    for key in ("run", "client", "round", "attempt"):
        if found[key] != getattr(task, key):
            raise ValueError(f"answers {key} {repr(found[key])[:40]}, asked was {getattr(task, key)!r}")
    error = None if found["error"] is None else str(found["error"])[:MOST_TEXT]
    metrics, notes = found["metrics"], found["notes"]
    return Reply(
        task.client,
        found["images"],
        None,
        None if metrics is None else _metrics(metrics),
        error,
        task.round,
        notes if isinstance(notes, dict) else {},
    )


def _metrics(values: Mapping[str, Any]) -> Metrics:
    """Numbers for the log. What is not one would end a run that only wanted to write it down."""
    found = Metrics(**values)
    whole = all(type(n) is int for n in (found.steps, found.images))
    if not whole or not all(type(n) in (int, float) for n in found if n is not None) or None in found[:6]:
        raise ValueError("its metrics are not numbers")
    return found
