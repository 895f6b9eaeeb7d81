"""Messages between server and nodes, apart from Trees: frozen values, one flat record each.

Untrusted input is parsed here. A malformed value raises a ValueError with a reason, so that no
other module has to check types or sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote

from flwr.app import ConfigRecord, RecordDict
from pydantic import AfterValidator, FailFast, Field, FiniteFloat, TypeAdapter, ValidationError

from fedssl.core.state.layout import Entry
from fedssl.core.version import __version__
from fedssl.engine.uploads.records import MAX_NOTE, Reply, sanitize
from fedssl.engine.uploads.validate import MAX_IMAGES
from fedssl.training.trainer import Metrics

RECORD = "fedssl"  # key of the record in a message

# Flower's message types.
HELLO = "query.hello"
TRAIN = "train"
KEEP = "query.keep"
NOTICE = "query.notice"
# The phases of a round with secure aggregation, in their order.
ADVERTISE = "query.secure_keys"
SHARE = "query.secure_shares"
TRAIN_MASKED = "train.secure"
UNMASK = "query.secure_unmask"
SECURE_PHASES = (ADVERTISE, SHARE, TRAIN_MASKED, UNMASK)

MAX_RECORD = 2**22  # characters of a record; the hello of 100,000 clients has 1.5 million
MAX_NAME = 200  # bytes of a client's name as the name of a file
MAX_LOGGED_CLAIMS = 3  # client names of a rejected node that are logged
MAX_NOTICE = 500  # characters
MAX_LOGGED_VALUE = 40  # characters of an invalid value or its key in an error message

T = TypeVar("T")


def _safe_name(name: str) -> str:
    """Return a client's name if it is safe in logs and as the name of a folder."""
    if name in ("", ".", "..") or not name.isprintable():
        raise ValueError("not a valid client name")
    if len(quote(name, safe="")) > MAX_NAME:
        raise ValueError(f"more than {MAX_NAME} characters when percent-encoded")
    return name


RunId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
ClientName = Annotated[str, AfterValidator(_safe_name)]
Count = Annotated[int, Field(strict=True, ge=0, le=10**15)]
Images = Annotated[int, Field(strict=True, ge=0, le=MAX_IMAGES)]
Channels = Annotated[int, Field(strict=True, ge=1, le=1024)]
Side = Annotated[int, Field(strict=True, ge=1, le=2**14)]  # pixels
Number = Annotated[FiniteFloat, Field(strict=True, ge=-MAX_NOTE, le=MAX_NOTE)]
Seconds = Annotated[FiniteFloat, Field(strict=True, ge=1e-6, le=MAX_NOTE)]


class RoundTask(NamedTuple):
    """A request to a node: one attempt of a client at a round of a run.

    Each start of the server is another attempt at the run. `starts[i]` is the first round of
    attempt i: client state that attempt i stored for rounds from `starts[i + 1]` on is ignored.
    The server may go back to round `oldest`, but not further. `until` is the deadline of the
    answer, in seconds since 1970; with authentication, Flower keeps clocks equal within a few
    minutes.
    """

    run: RunId
    client: ClientName
    round: Count
    attempt: Count
    starts: Annotated[tuple[Count, ...], FailFast()] = (0,)
    oldest: Count = 0
    until: Number = MAX_NOTE


class Hello(NamedTuple):
    """A node's description of itself before training: only the number and shape of its images."""

    # client on this node (usually one) -> its number of images
    clients: Annotated[Mapping[ClientName, Images], Field(min_length=1)]
    image: tuple[Channels, Side, Side]
    layout: Annotated[tuple[Entry, ...], FailFast()]  # of the model it will train
    version: str  # of fedssl
    masked_only: bool = False  # True if the node sends uploads for a secure sum only
    init_sha256: Digest | None = None  # of the node's frozen weights, if the method has adapters


class Refusal(NamedTuple):
    """The reason why a node has not sent a valid hello."""

    reason: str
    clients: tuple[str, ...] = ()  # that the node claims to have, if they are readable
    stated: bool = False  # by the node, so that its operator has seen the reason


class SentMetrics(NamedTuple):
    """`Metrics` that can be logged: any other value would end the run when it is written."""

    loss: Number
    steps: Count
    images: Count
    seconds: Seconds
    embedding_std: Number
    effective_rank: Number
    alignment: Number | None = None
    uniformity: Number | None = None


class SentReply(NamedTuple):
    """A reply without its upload. `images` and `notes` are checked with the upload."""

    run: str
    client: str
    round: Count
    attempt: Count
    images: Any
    error: str | None
    metrics: SentMetrics | None
    notes: dict[str, Any]


_TASK = TypeAdapter(RoundTask)
_HELLO = TypeAdapter(Hello)
_REPLY = TypeAdapter(SentReply)


def make_record(**values: Any) -> ConfigRecord:
    """Return values as a record of a message."""
    return ConfigRecord({"json": json.dumps(values)})


def read_record(records: RecordDict, name: str = RECORD) -> dict[str, Any]:
    """Return the unchecked values of a record of a message."""
    text = str(records[name]["json"])
    if len(text) > MAX_RECORD:
        raise ValueError(f"a record of {len(text)} characters is longer than {MAX_RECORD}")
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("not a fedssl record")
    return values


def validated(kind: TypeAdapter[T], values: dict[str, Any]) -> T:
    """Return values as a type; raises ValueError with the first problem."""
    try:
        return kind.validate_python(values)
    except ValidationError as failure:
        raise ValueError(first_problem(failure)) from None


def first_problem(failure: ValidationError) -> str:
    """Return the first problem of a failed validation: the key, the rule and the value."""
    problem = failure.errors(include_url=False)[0]
    key = sanitize(".".join(map(str, problem["loc"])), MAX_LOGGED_VALUE)
    rule = problem["msg"].removeprefix("Value error, ")
    return f"{key}: {rule[:1].lower()}{rule[1:]}, got {_shown(problem['input'])}"


def _shown(value: Any) -> str:
    """Return an untrusted value for an error message."""
    return sanitize(repr(value), MAX_LOGGED_VALUE)


def pack_task(records: RecordDict, task: RoundTask) -> RecordDict:
    """Add a task to the records of a message, and return them."""
    records[RECORD] = make_record(**task._asdict())
    return records


def unpack_task(records: RecordDict) -> RoundTask:
    """Return the task in a message; raises ValueError, KeyError or TypeError if unreadable."""
    return validated(_TASK, read_record(records))


def pack_hello(hello: Hello) -> RecordDict:
    """Return the records of a hello."""
    return RecordDict({RECORD: make_record(**hello._asdict())})


def pack_refusal(reason: str, clients: Sequence[str] = ()) -> RecordDict:
    """Return the answer of a node that cannot send a hello or cannot read its task."""
    values: dict[str, Any] = {"error": reason}
    if clients:
        values["clients"] = list(clients)
    return RecordDict({RECORD: make_record(**values)})


def pack_notice(text: str) -> RecordDict:
    """Return a message for the log of a node's operator."""
    return RecordDict({RECORD: make_record(notice=text)})


def unpack_notice(records: RecordDict) -> str:
    """Return the text of a notice, sanitized for a log."""
    return sanitize(read_record(records)["notice"], MAX_NOTICE)


def unpack_hello(records: RecordDict) -> Hello | Refusal:
    """Return a node's hello, or the reason why it is not valid."""
    claimed: tuple[str, ...] = ()
    try:
        values = read_record(records)
        claimed = _claimed_names(values.get("clients"))
        if "error" in values:
            return Refusal(str(values["error"]), claimed, stated=True)
        version = values.get("version")
        if version != __version__:  # before other values: their format may differ, too
            return Refusal(f"it has fedssl {version}, the server {__version__}", claimed)
        return validated(_HELLO, values)
    except ValueError as problem:
        return Refusal(f"its hello is not valid: {problem}", claimed)
    except Exception as problem:  # a node may have written anything
        return Refusal(f"its hello cannot be read ({type(problem).__name__})", claimed)


def _claimed_names(clients: Any) -> tuple[str, ...]:
    """Return a few of the client names in an untrusted hello; () if they are not readable."""
    if not isinstance(clients, dict | list):
        return ()
    try:
        return tuple(_safe_name(str(client)) for client in list(clients)[:MAX_LOGGED_CLAIMS])
    except ValueError:
        return ()


def pack_reply(records: RecordDict, task: RoundTask, reply: Reply) -> RecordDict:
    """Add a reply to the records of its upload, if there is one, and return them."""
    metrics = None
    if reply.metrics is not None:
        metrics = reply.metrics._asdict()
    records[RECORD] = make_record(
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


def unpack_reply(records: RecordDict, task: RoundTask) -> Reply:
    """Return a client's reply without its upload; raises if unreadable or for another task."""
    reply = Reply(task.client, 0, None, metrics=None, round=task.round)
    values = read_record(records)
    if values.keys() == {"error"}:  # the node could not read its task
        return reply._replace(error=str(values["error"]))
    sent = validated(_REPLY, values)
    for key in ("run", "client", "round", "attempt"):
        expected = getattr(task, key)
        found = getattr(sent, key)
        if found != expected:
            raise ValueError(f"answers {key} {_shown(found)} instead of {expected!r}")
    metrics = None
    if sent.metrics is not None:
        metrics = Metrics(*sent.metrics)
    return reply._replace(images=sent.images, metrics=metrics, error=sent.error, notes=sent.notes)
