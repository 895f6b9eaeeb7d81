"""One round of secure aggregation on the server: four phases, then the mean of the uploads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from flwr.app import RecordDict

from fedssl.core.state.tree import Tree
from fedssl.flower.codec import Encoder
from fedssl.flower.messages import ADVERTISE, SHARE, TRAIN_MASKED, UNMASK
from fedssl.flower.secure_aggregation.messages import (
    MaskRequest,
    SentCounts,
    SentRevealed,
    SentShares,
    StatedError,
    UnmaskRequest,
    add_request,
    read_vector,
    to_revealed,
    unpack_answer,
)
from fedssl.flower.secure_aggregation.phases import Content, Phase, PhaseAnswer, PhaseExchange
from fedssl.flower.secure_aggregation.roster import Member
from fedssl.flower.secure_aggregation.server import SecureSum, SecureSumError
from fedssl.flower.secure_aggregation.vector import MeanMetrics, VectorLayout

# The ends of the phases, as shares of the round's timeout.
ADVERTISED_BY = 0.15
SHARED_BY = 0.3
TRAINED_BY = 0.85
UNMASKED_BY = 1.0
T = TypeVar("T")


class RoundInput(NamedTuple):
    """What a round needs to begin."""

    images: Mapping[str, int]  # client -> images that it declared
    message: Callable[[str], Tree]  # client -> message
    max_weight: float  # to which larger weights are cut
    norm_limit: float | None  # of a client's update
    required: int  # uploads
    timeout: float  # seconds
    ttl: float  # seconds until Flower deletes an answer
    on_upload: Callable[[str], None]  # called when a client has sent its upload, or has not


class SecureMean(NamedTuple):
    """The result of a round."""

    models: Tree
    metrics: MeanMetrics


class SecureRound:
    """One round; `run` returns the mean or raises SecureSumError."""

    def __init__(
        self,
        exchange: PhaseExchange,
        secure_sum: SecureSum,
        layout: VectorLayout,
        given: RoundInput,
    ) -> None:
        self.dropped: dict[str, str] = {}  # client -> why its upload is not in the sum
        self.informed: set[str] = set()  # dropped clients whose own log has the reason
        self.counts: dict[str, SentCounts] = {}  # of clients whose uploads are in the sum
        self._exchange = exchange
        self._sum = secure_sum
        self._layout = layout
        self._given = given
        self._required = given.required
        self._start = time.monotonic()

    def run(self) -> SecureMean:
        """Return the mean of the uploads."""
        self._ask(ADVERTISE, lambda client: RecordDict(), ADVERTISED_BY, self._add_keys)
        roster = self._sum.make_roster(self._given.max_weight)
        self._required = max(self._required, roster.required)
        self._ask(
            SHARE, lambda client: add_request(RecordDict(), roster), SHARED_BY, self._add_shares
        )
        self._ask(TRAIN_MASKED, self._mask_request(), TRAINED_BY, self._add_vector)
        self._unmask()
        total, share = self._sum.result()
        return SecureMean(*self._layout.decode(total, share))

    def _add_keys(self, answer: PhaseAnswer) -> None:
        images = self._given.images[answer.client]
        self._sum.add_member(answer.client, _result(answer, Member), images)

    def _add_shares(self, answer: PhaseAnswer) -> None:
        self._sum.add_ciphertexts(answer.client, _result(answer, SentShares).ciphertexts)

    def _mask_request(self) -> Callable[[str], RecordDict]:
        """Return the function that makes the request for a client's masked vector."""
        encode = Encoder()
        digest = self._sum.digest

        def request(client: str) -> RecordDict:
            ciphertexts = self._sum.ciphertexts_for(client)
            tree = encode(self._given.message(client))
            return add_request(tree, MaskRequest(digest, ciphertexts, self._given.norm_limit))

        return request

    def _add_vector(self, answer: PhaseAnswer) -> None:
        """Add a masked vector to the sum; it is not stored."""
        counts = _result(answer, SentCounts)
        declared = self._given.images[answer.client]
        if counts.images != declared:
            raise ValueError(f"claims {counts.images} images, but declared {declared}")
        assert answer.content is not None
        self._sum.add_vector(answer.client, read_vector(answer.content))
        self.counts[answer.client] = counts

    def _unmask(self) -> None:
        """Collect what unmasks the sum. A client that does not answer stays in the sum."""
        request = UnmaskRequest(self._sum.digest, tuple(self._sum.survivors))
        contents = {client: lambda: add_request(RecordDict(), request) for client in self.counts}
        for answer in self._exchange.ask(self._phase(UNMASK, contents), self._end(UNMASKED_BY)):
            try:
                revealed = to_revealed(_result(answer, SentRevealed))
                self._sum.add_revealed(answer.client, revealed)
            except Exception:  # nosec B112 # a node may have written anything
                continue

    def _ask(
        self,
        kind: str,
        request: Callable[[str], RecordDict],
        end: float,
        accept: Callable[[PhaseAnswer], None],
    ) -> None:
        """Ask all clients that have not dropped out; one whose answer is not valid does."""
        contents: dict[str, Content] = {}
        for client in self._given.images:
            if client not in self.dropped:
                contents[client] = partial(request, client)
        for answer in self._exchange.ask(self._phase(kind, contents), self._end(end)):
            self._accept(answer, accept)
            if kind == TRAIN_MASKED:
                self._given.on_upload(answer.client)
            self._raise_if_too_few()

    def _accept(self, answer: PhaseAnswer, accept: Callable[[PhaseAnswer], None]) -> None:
        try:
            accept(answer)
        except StatedError as problem:
            self._drop(answer, str(problem), informed=True)
        except Exception as problem:  # a node may have written anything
            self._drop(answer, str(problem) or type(problem).__name__, informed=False)

    def _drop(self, answer: PhaseAnswer, reason: str, informed: bool) -> None:
        self.dropped[answer.client] = reason
        if informed:
            self.informed.add(answer.client)

    def _raise_if_too_few(self) -> None:
        possible = len(self._given.images) - len(self.dropped)
        if possible < self._required:
            raise SecureSumError(
                f"the secure sum can have {possible} uploads and needs {self._required}"
            )

    def _phase(self, kind: str, contents: Mapping[str, Content]) -> Phase:
        return Phase(kind, self._sum.session.round, contents, self._given.ttl)

    def _end(self, share: float) -> float:
        """Return the end of a phase, as a monotonic time."""
        return self._start + share * self._given.timeout


def _result(answer: PhaseAnswer, kind: type[T]) -> T:
    """Return the result in an answer; or raise StatedError with the reason why it is missing."""
    if answer.content is None:
        raise StatedError(answer.error or "no answer")
    return unpack_answer(answer.content, answer.task, kind)
