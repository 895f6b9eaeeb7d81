"""The records that an upload passes through on its way from a client to the rounds log.

A `Reply` is what a runtime received, a `Candidate` is a reply that was validated, and a `Report` is
the client's line in the log. Algorithms merge `fedssl.algorithm.Upload`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from fedssl.core.state.tree import Tree
from fedssl.engine.uploads.norm_bound import Movement
from fedssl.training.trainer import Metrics

NO_NOTES: Mapping[str, float] = MappingProxyType({})
NO_TREE: Tree = MappingProxyType({})
MAX_NOTES = 20
MAX_NOTE = 1e38  # the largest number in a note: finite, and so is its product with a count
MAX_TEXT = 200  # characters of untrusted text in a log
MAX_NOTE_NAME = 40  # characters


class Reply(NamedTuple):
    """A client's answer in one round: an upload, or the reason why there is none. Untrusted."""

    client: str
    images: int | float | str  # the number of images that the client claims
    upload: Tree | None
    metrics: Metrics | None
    error: str | None = None
    round: int | None = None  # the round it answers, from 0; None: the runtime guarantees this one
    notes: Mapping[str, float] = NO_NOTES  # numbers that the algorithm reports
    sent_bytes: int | None = None  # by the client; None: the size of the upload


class Candidate(NamedTuple):
    """A validated reply. It counts unless it has an error."""

    reply: Reply  # without its upload if there is an error, so that no upload is held in vain
    error: str | None
    unexpected: bool = False  # not a reply that this round waits for
    trained: bool = False  # the client has trained, whether or not its upload counts
    bytes_down: int = 0
    bytes_up: int = 0
    sent: Tree = NO_TREE  # the models that the upload is measured from
    norm: float | None = None  # of the update; None: no model was sent and returned
    movement: Movement | None = None  # compared with other uploads; None: this one has no bound
    dropped_rows_reason: str | None = None  # rows of shared features that do not count, and why

    @property
    def client(self) -> str:
        """The id of the client."""
        return self.reply.client

    @property
    def images(self) -> int:
        """The number of images of a client whose upload counts."""
        return int(self.reply.images)

    @property
    def upload(self) -> Tree | None:
        """The upload; None if it does not count."""
        return self.reply.upload

    def rejected(self, error: str) -> Candidate:
        """Return this candidate as one that does not count."""
        return self._replace(reply=self.reply._replace(upload=None), error=error, sent=NO_TREE)


class Report(NamedTuple):
    """One client's line in the rounds log."""

    client: str
    dropped: str | None
    metrics: Metrics | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    divergence: float | None = None  # L2 between the models sent and returned, over parameters
    memory_advanced: bool = False  # dropped after training: the client's memory is one round ahead
    notes: Mapping[str, float] = NO_NOTES
    clipped: float | None = None  # the fraction of the update that counted, if it was clipped
    dropped_rows_reason: str | None = None  # rows of shared features that did not count, and why


def sanitize(text: object, limit: int = MAX_TEXT) -> str:
    """Return untrusted text for a log or a terminal: short, on one line, no control characters."""
    words = str(text)
    characters = []
    for character in words[:limit]:
        if not character.isprintable():
            character = character.encode("unicode_escape").decode()
        characters.append(character)
    clean = "".join(characters)
    if len(words) > limit or len(clean) > limit:
        return clean[:limit] + "…"
    return clean


def loggable_notes(notes: Mapping[str, float]) -> dict[str, float]:
    """Return the notes that a log can hold: a few finite numbers."""
    numbers: dict[str, float] = {}
    for key, note in notes.items():
        if len(numbers) == MAX_NOTES:
            break
        if isinstance(note, int | float) and abs(note) <= MAX_NOTE:
            numbers[key] = note
    return {sanitize(key, MAX_NOTE_NAME): note for key, note in numbers.items()}
