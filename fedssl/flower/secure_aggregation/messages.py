"""Messages of the secure sum: what is added to a task, and the answers of the four phases.

Untrusted input is parsed here. A malformed value raises a ValueError with a reason.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from fedssl.flower.messages import (
    RECORD,
    Count,
    Images,
    RoundTask,
    Seconds,
    first_problem,
    make_record,
    read_record,
    validated,
)
from fedssl.flower.secure_aggregation.client import Revealed
from fedssl.flower.secure_aggregation.masks import WORD, Words
from fedssl.flower.secure_aggregation.roster import Member, SecureRoster

REQUEST = "secure"  # key of the record with what is added to a task
VECTOR = "vector"
FORMAT = "words"
MAX_CIPHERTEXT = 500  # bytes

Index = Annotated[int, Field(strict=True, ge=1)]
Bytes = Annotated[bytes, Field(max_length=MAX_CIPHERTEXT)]
HexShare = Annotated[str, Field(pattern="^[0-9a-f]{1,132}$")]  # below 2⁵²⁸
Digest = Annotated[bytes, Field(min_length=32, max_length=32)]
T = TypeVar("T")


class MaskRequest(NamedTuple):
    """The request for a masked vector."""

    digest: Digest  # of the roster
    ciphertexts: dict[Index, Bytes]  # of shares for this client, by sender
    norm_limit: FiniteFloat | None  # of the client's update


class UnmaskRequest(NamedTuple):
    """The request for shares that unmask the sum."""

    digest: Digest
    survivors: tuple[Index, ...]


class Answer(NamedTuple):
    """An answer of any phase. A client without a result sends the reason alone: `pack_refusal`."""

    run: str
    client: str
    round: Count
    attempt: Count
    result: str  # as JSON


class SentShares(NamedTuple):
    """The answer to SHARE: encrypted shares by receiver."""

    ciphertexts: dict[Index, Bytes]


class SentCounts(NamedTuple):
    """What stays visible of an upload, in the answer to TRAIN_MASKED."""

    images: Images  # of the client
    trained: Count  # images that it has trained on
    steps: Count
    seconds: Seconds


class SentRevealed(NamedTuple):
    """The answer to UNMASK, with shares as hexadecimal numbers."""

    keys: dict[Index, HexShare]
    seeds: dict[Index, HexShare]


_CONFIG = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")
_TYPES: dict[type, TypeAdapter[Any]] = {
    kind: TypeAdapter(kind, config=_CONFIG)
    for kind in (
        SecureRoster,
        MaskRequest,
        UnmaskRequest,
        Member,
        SentShares,
        SentCounts,
        SentRevealed,
    )
}
_ANSWER = TypeAdapter(Answer)


def _dump(value: NamedTuple) -> str:
    text: str = _TYPES[type(value)].dump_json(value).decode()
    return text


def _parse(kind: type[T], text: str) -> T:
    """Return a value from JSON; raises ValueError with the first problem."""
    try:
        value: T = _TYPES[kind].validate_json(text)
    except ValidationError as failure:
        raise ValueError(first_problem(failure)) from None
    return value


def add_request(records: RecordDict, request: NamedTuple) -> RecordDict:
    """Add what a phase needs to the records of a task, and return them."""
    records[REQUEST] = make_record(request=_dump(request))
    return records


def read_request(records: RecordDict, kind: type[T]) -> T:
    """Return what was added to a task; raises ValueError or KeyError if it is unreadable."""
    return _parse(kind, read_record(records, REQUEST)["request"])


def pack_answer(task: RoundTask, result: NamedTuple) -> RecordDict:
    """Return the answer of a phase."""
    record = make_record(
        run=task.run,
        client=task.client,
        round=task.round,
        attempt=task.attempt,
        result=_dump(result),
    )
    return RecordDict({RECORD: record})


class StatedError(Exception):
    """The reason that a client gives for having no result."""


def unpack_answer(records: RecordDict, task: RoundTask, kind: type[T]) -> T:
    """Return the result of a phase.

    Raises StatedError if the client has none, ValueError if the answer is not valid.
    """
    values = read_record(records)
    if values.keys() == {"error"}:
        raise StatedError(str(values["error"]))
    answer = validated(_ANSWER, values)
    for key in ("run", "client", "round", "attempt"):
        if getattr(answer, key) != getattr(task, key):
            raise ValueError(f"answers another {key} than {getattr(task, key)!r}")
    return _parse(kind, answer.result)


def add_vector(records: RecordDict, words: Words) -> RecordDict:
    """Add a masked vector to the records of an answer, and return them."""
    data = words.astype(WORD, copy=False).tobytes()
    arrays = ArrayRecord()
    arrays[VECTOR] = Array(str(WORD), words.shape, FORMAT, data)
    records[VECTOR] = arrays
    return records


def read_vector(records: RecordDict) -> Words:
    """Return the vector in an answer."""
    arrays: Any = records[VECTOR]
    data: bytes = arrays[VECTOR].data
    if len(data) % WORD.itemsize:
        raise ValueError(f"a vector of {len(data)} bytes is not made of words")
    return np.frombuffer(data, WORD).astype(np.uint64, copy=False)


def to_sent(revealed: Revealed) -> SentRevealed:
    """Return revealed shares as text."""
    keys = {index: f"{share:x}" for index, share in revealed.keys.items()}
    return SentRevealed(keys, {index: f"{share:x}" for index, share in revealed.seeds.items()})


def to_revealed(sent: SentRevealed) -> Revealed:
    """Return revealed shares as numbers; raises ValueError if one is not a number."""
    keys = {index: int(share, 16) for index, share in sent.keys.items()}
    return Revealed(keys, {index: int(share, 16) for index, share in sent.seeds.items()})
