"""Messages between server and nodes, apart from Trees: frozen values, one flat record each.

Untrusted input is parsed here. A malformed value raises a ValueError with a reason, so that no
other module has to check types or sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from flwr.app import ConfigRecord, RecordDict

from fedssl.core.state.codec import layout_of, list_entries
from fedssl.core.state.layout import Layout
from fedssl.engine.uploads.records import MAX_NOTE, Reply, sanitize
from fedssl.engine.uploads.validate import MAX_IMAGES
from fedssl.training.trainer import Metrics

RECORD = "fedssl"  # key of the record in a message

# Flower's message types.
HELLO = "query.hello"
TRAIN = "train"
KEEP = "query.keep"
NOTICE = "query.notice"

MAX_NAME = 200  # bytes of a client's name as the name of a file
MAX_CHANNELS = 1024  # of an image
MAX_SIDE = 2**14  # pixels of an image
MAX_COUNT = 10**15  # of steps and images
MIN_SECONDS = 1e-6
MAX_LOGGED_CLAIMS = 3  # client names of a rejected node that are logged
MAX_NOTICE = 500  # characters
MAX_LOGGED_VALUE = 40  # characters of an invalid value in an error message


class Task(NamedTuple):
    """A request to a node: one attempt of a client at a round of a run.

    Each start of the server is another attempt at the run. `starts` lists the first round of each
    attempt so far: state that a client stored in later rounds of an earlier attempt was discarded.
    The server may go back to round `oldest`, but not further. `until` is the deadline of the
    answer, in seconds since 1970; with authentication, Flower keeps clocks equal within a few
    minutes.
    """

    run: str
    client: str
    round: int
    attempt: int
    starts: tuple[int, ...] = (0,)
    oldest: int = 0
    until: float = MAX_NOTE


class Hello(NamedTuple):
    """A node's description of itself before training: only the number and shape of its images."""

    clients: Mapping[str, int]  # client on this node (usually one) -> its number of images
    image: tuple[int, int, int]
    layout: Layout  # of the model it will train
    version: str  # of fedssl


class Refusal(NamedTuple):
    """The reason why a node has not sent a valid hello."""

    reason: str
    clients: tuple[str, ...] = ()  # that the node claims to have, if they are readable
    stated: bool = False  # by the node, so that its operator has seen the reason


def _record(**values: Any) -> ConfigRecord:
    return ConfigRecord({"json": json.dumps(values)})


def _values(records: RecordDict) -> dict[str, Any]:
    values = json.loads(str(records[RECORD]["json"]))
    if not isinstance(values, dict):
        raise ValueError("not a fedssl record")
    return values


def _shown(value: Any) -> str:
    """Return an untrusted value for an error message."""
    return sanitize(repr(value), MAX_LOGGED_VALUE)


def _integer(value: Any, maximum: int = MAX_COUNT, minimum: int = 0) -> int:
    if type(value) is not int or not minimum <= value <= maximum:
        raise ValueError(f"{_shown(value)} is not an integer from {minimum} to {maximum}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= MAX_NOTE:
        raise ValueError(f"{_shown(value)} is not a finite number")
    return float(value)


def _client_name(value: Any) -> str:
    """Return a client's name if it is safe in logs and as the name of a folder."""
    if not isinstance(value, str) or value in ("", ".", "..") or not value.isprintable():
        raise ValueError(f"{_shown(value)} is not a valid client name")
    if len(quote(value, safe="")) > MAX_NAME:
        raise ValueError(f"a client name has at most {MAX_NAME} characters when percent-encoded")
    return value


def _run_id(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 32 or set(value) - set("0123456789abcdef"):
        raise ValueError(f"{_shown(value)} is not a run id")
    return value


def pack_task(records: RecordDict, task: Task) -> RecordDict:
    """Add a task to the records of a message, and return them."""
    records[RECORD] = _record(**task._asdict())
    return records


def unpack_task(records: RecordDict) -> Task:
    """Return the task in a message; raises ValueError, KeyError or TypeError if unreadable."""
    values = _values(records)
    starts = tuple(_integer(start) for start in values["starts"])
    return Task(
        run=_run_id(values["run"]),
        client=_client_name(values["client"]),
        round=_integer(values["round"]),
        attempt=_integer(values["attempt"]),
        starts=starts,
        oldest=_integer(values["oldest"]),
        until=_number(values["until"]),
    )


def pack_hello(hello: Hello) -> RecordDict:
    """Return the records of a hello."""
    values = {**hello._asdict(), "layout": list_entries(hello.layout)}
    return RecordDict({RECORD: _record(**values)})


def pack_refusal(reason: str, clients: Sequence[str] = ()) -> RecordDict:
    """Return the answer of a node that cannot send a hello or cannot read its task."""
    values: dict[str, Any] = {"error": reason}
    if clients:
        values["clients"] = list(clients)
    return RecordDict({RECORD: _record(**values)})


def pack_notice(text: str) -> RecordDict:
    """Return a message for the log of a node's operator."""
    return RecordDict({RECORD: _record(notice=text)})


def unpack_notice(records: RecordDict) -> str:
    """Return the text of a notice, sanitized for a log."""
    return sanitize(_values(records)["notice"], MAX_NOTICE)


def unpack_hello(records: RecordDict) -> Hello | Refusal:
    """Return a node's hello, or the reason why it is not valid."""
    claimed: tuple[str, ...] = ()
    try:
        values = _values(records)
        claimed = _claimed_names(values.get("clients"))
        if "error" in values:
            return Refusal(str(values["error"]), claimed, stated=True)
        return _valid_hello(values)
    except ValueError as problem:
        return Refusal(f"its hello is not valid: {problem}", claimed)
    except Exception as problem:  # a node may have written anything
        return Refusal(f"its hello cannot be read ({type(problem).__name__})", claimed)


def _valid_hello(values: Mapping[str, Any]) -> Hello | Refusal:
    channels, height, width = values["image"]
    image = (
        _integer(channels, MAX_CHANNELS, 1),
        _integer(height, MAX_SIDE, 1),
        _integer(width, MAX_SIDE, 1),
    )
    layout = layout_of(values["layout"])
    hash(layout)  # raises if a name or a shape is a list
    clients: dict[str, int] = {}
    for client, images in values["clients"].items():
        clients[_client_name(client)] = _integer(images, MAX_IMAGES)
    if not clients:
        return Refusal("its hello is not valid: it names no client")
    return Hello(clients, image, layout, version=str(values["version"]))


def _claimed_names(clients: Any) -> tuple[str, ...]:
    """Return a few of the client names in an untrusted hello; () if they are not readable."""
    if not isinstance(clients, dict | list):
        return ()
    try:
        return tuple(_client_name(client) for client in list(clients)[:MAX_LOGGED_CLAIMS])
    except ValueError:
        return ()


def pack_reply(records: RecordDict, task: Task, reply: Reply) -> RecordDict:
    """Add a reply to the records of its upload, if there is one, and return them."""
    metrics = None
    if reply.metrics is not None:
        metrics = reply.metrics._asdict()
    records[RECORD] = _record(
        run=task.run,
        client=task.client,
        round=task.round,
        attempt=task.attempt,
        images=reply.images,
        error=reply.error,
        metrics=metrics,
        notes=dict(reply.notes),
    )
    return records


def unpack_reply(records: RecordDict, task: Task) -> Reply:
    """Return a client's reply without its upload; raises if unreadable or for another task."""
    values = _values(records)
    reply = Reply(task.client, 0, None, metrics=None, round=task.round)
    if values.keys() == {"error"}:  # the node could not read its task
        return reply._replace(error=str(values["error"]))
    for key in ("run", "client", "round", "attempt"):
        expected = getattr(task, key)
        if values[key] != expected:
            raise ValueError(f"answers {key} {_shown(values[key])} instead of {expected!r}")
    error = values["error"]
    metrics = values["metrics"]
    notes = values["notes"]
    return reply._replace(
        images=values["images"],
        metrics=None if metrics is None else _checked_metrics(metrics),
        error=None if error is None else str(error),
        notes=notes if isinstance(notes, dict) else {},
    )


def _checked_metrics(values: Mapping[str, Any]) -> Metrics:
    """Return metrics that can be logged: any other value would end the run when it is written."""
    checked: dict[str, Any] = {}
    for key, value in Metrics(**values)._asdict().items():
        if value is None and key in Metrics._field_defaults:
            continue
        if key in ("steps", "images"):
            checked[key] = _integer(value)
        else:
            checked[key] = _number(value)
    if checked["seconds"] < MIN_SECONDS:
        raise ValueError("its training took no time")
    return Metrics(**checked)
