"""What server and nodes say to each other beside Trees: small frozen values, as one flat record each.

Here is where a stranger's words are read. Whatever is not as it should be is a ValueError with a reason, so that nobody
further in has to doubt a type or a size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from flwr.app import ConfigRecord, RecordDict

from fedssl.guard import MOST_NUMBER, Reply, plain
from fedssl.layout import Layout
from fedssl.soundness import MAX_IMAGES
from fedssl.train import Metrics
from fedssl.tree import layout_of, list_entries

WORDS = "fedssl"
HELLO, TRAIN, KEEP = "query.hello", "train", "query.keep"  # Flower's message types
NOTICE = "query.notice"
MOST_NAME = 200  # bytes of a client's name as the name of a file
MOST_CHANNELS, MOST_SIDE = 1024, 2**14  # of an image
MOST_COUNT = 10**15  # of steps and images
LEAST_SECONDS = 1e-6
MOST_CLAIMED = 3  # client names of a rejected node that are logged
MOST_NOTICE = 500  # characters


class Task(NamedTuple):
    """What a node is asked to do: one attempt of a client at a round of a run.

    A run that goes on after its server was killed is another attempt at it. `starts` has, for each attempt so far, the
    round it began with: what a client remembers of later rounds of an earlier attempt belongs to a past that is no
    more. The server may go back to round `oldest` but not further. Nobody waits for the answer after `until`, seconds
    since 1970; with authentication Flower makes sure that clocks agree to a few minutes.
    """

    run: str
    client: str
    round: int
    attempt: int
    starts: tuple[int, ...] = (0,)
    oldest: int = 0
    until: float = MOST_NUMBER


class Hello(NamedTuple):
    """What a node tells of itself before any training, and nothing of its images but how many and of which shape."""

    clients: Mapping[str, int]  # those that live on the node, most often one, and how many images each has
    image: tuple[int, int, int]
    layout: Layout  # of the model it will train
    version: str  # of fedssl


class Refusal(NamedTuple):
    """Why a node has not sent a valid hello."""

    reason: str
    clients: tuple[str, ...] = ()  # that it claims to have, as far as that can be read
    stated: bool = False  # by the node itself, so that its operator has seen the reason


def _record(**values: Any) -> ConfigRecord:
    return ConfigRecord({"json": json.dumps(values)})


def _values(records: RecordDict) -> dict[str, Any]:
    found = json.loads(str(records[WORDS]["json"]))
    if not isinstance(found, dict):
        raise ValueError("not a record of fedssl's")
    return found


def _count(value: Any, most: int = MOST_COUNT, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{plain(repr(value), 40)} is no number from {least} to {most}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= MOST_NUMBER:
        raise ValueError(f"{plain(repr(value), 40)} is no finite number")
    return float(value)


def name(value: Any) -> str:
    """A client's name, fit for logs and as the name of a folder."""
    if not isinstance(value, str) or value in ("", ".", "..") or not value.isprintable():
        raise ValueError(f"{plain(repr(value), 40)} is no name for a client")
    if len(quote(value, safe="")) > MOST_NAME:
        raise ValueError(f"a client's name has at most {MOST_NAME} letters")
    return value


def put_task(records: RecordDict, task: Task) -> RecordDict:
    records[WORDS] = _record(**task._asdict())
    return records


def task_in(records: RecordDict) -> Task:
    """What a node is asked for; a ValueError, KeyError or TypeError if it cannot be read."""
    found = _values(records)
    run, starts = found["run"], tuple(_count(start) for start in found["starts"])
    if not isinstance(run, str) or len(run) != 32 or set(run) - set("0123456789abcdef"):
        raise ValueError("no run is called that")
    round, attempt, oldest = (_count(found[key]) for key in ("round", "attempt", "oldest"))
    return Task(run, name(found["client"]), round, attempt, starts, oldest, _number(found["until"]))


def put_hello(hello: Hello) -> RecordDict:
    return RecordDict({WORDS: _record(**{**hello._asdict(), "layout": list_entries(hello.layout)})})


def put_refusal(reason: str, clients: Sequence[str] = ()) -> RecordDict:
    """Of a node that cannot say hello, or does not understand what it is asked."""
    named: dict[str, Any] = {"clients": list(clients)} if clients else {}
    return RecordDict({WORDS: _record(error=reason, **named)})


def put_notice(text: str) -> RecordDict:
    """Make a message for the log of a node's operator."""
    return RecordDict({WORDS: _record(notice=text)})


def notice_in(records: RecordDict) -> str:
    return plain(_values(records)["notice"], MOST_NOTICE)


def hello_in(records: RecordDict) -> Hello | Refusal:
    """Return a node's hello, or why there is none."""
    claimed: tuple[str, ...] = ()
    try:
        found = _values(records)
        claimed = _claimed(found.get("clients"))
        if "error" in found:
            return Refusal(str(found["error"]), claimed, stated=True)
        channels, height, width = found["image"]
        image = _count(channels, MOST_CHANNELS, 1), _count(height, MOST_SIDE, 1), _count(width, MOST_SIDE, 1)
        layout = layout_of(found["layout"])
        hash(layout)  # a name or a shape that is a list has none
        clients = {name(client): _count(images, MAX_IMAGES) for client, images in found["clients"].items()}
        if not clients:
            return Refusal("its hello makes no sense: no client lives there")
        return Hello(clients, image, layout, str(found["version"]))
    except ValueError as problem:
        return Refusal(f"its hello makes no sense: {problem}", claimed)
    except Exception as problem:  # a stranger may have written anything
        return Refusal(f"its hello cannot be read ({type(problem).__name__})", claimed)


def _claimed(clients: Any) -> tuple[str, ...]:
    """Return a few of the client names in an untrusted hello, or none if they cannot be read."""
    if not isinstance(clients, dict | list):
        return ()
    try:
        return tuple(name(client) for client in list(clients)[:MOST_CLAIMED])
    except ValueError:
        return ()


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
    """A client's reply, but for its upload; some error if it answers something else, or cannot be read."""
    found = _values(records)
    if found.keys() == {"error"}:  # it has not understood what it was asked
        return Reply(task.client, 0, None, None, str(found["error"]), task.round)
    for key in ("run", "client", "round", "attempt"):
        if found[key] != getattr(task, key):
            raise ValueError(f"answers {key} {plain(repr(found[key]), 40)}, asked was {getattr(task, key)!r}")
    error = None if found["error"] is None else str(found["error"])
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
    found = Metrics(**values)._asdict()
    checked: dict[str, Any] = {
        key: _count(n) if key in ("steps", "images") else _number(n)
        for key, n in found.items()
        if n is not None or key not in Metrics._field_defaults
    }
    if checked["seconds"] < LEAST_SECONDS:
        raise ValueError("its training has taken no time")
    return Metrics(**checked)
