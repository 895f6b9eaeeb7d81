"""The server's runtime with secure aggregation.

The mean of a round takes the place of the upload of each client in the sum: the guard checks it,
and an algorithm that reads uploads through means only gets the mean. Its weights do not matter:
the mean of equal models is that model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from fedssl.core.state.tree import Tree, to_device
from fedssl.engine.federate import Round
from fedssl.engine.uploads.norm_bound import LARGEST_NORM, TypicalUpdate
from fedssl.engine.uploads.records import Reply
from fedssl.engine.uploads.settings import GuardSettings
from fedssl.engine.uploads.upload_weights import largest_count
from fedssl.flower.runtime import TTL_MARGIN, FlowerRuntime
from fedssl.flower.secure_aggregation.messages import SentCounts
from fedssl.flower.secure_aggregation.phases import PhaseExchange
from fedssl.flower.secure_aggregation.roster import MIN_UPLOADS, SessionId
from fedssl.flower.secure_aggregation.secure_round import RoundInput, SecureMean, SecureRound
from fedssl.flower.secure_aggregation.server import SecureSum, SecureSumError
from fedssl.flower.secure_aggregation.vector import VectorLayout
from fedssl.training.trainer import Metrics

WORD_BYTES = 8
# Note in the rounds log: the metrics of a client are means over this many clients.
CLIENTS_IN_SUM = "clients_in_sum"
NOT_CONNECTED = "its node is not connected"


class SumSettings(NamedTuple):
    """Settings of the secure sums of a run."""

    threshold: float  # share of the clients that cannot unmask a sum
    uniform: bool  # True if all clients have the same weight
    max_share: float  # of the weight, for one client
    guard: GuardSettings
    lr_at: Callable[[int], float]  # round -> learning rate


class SecureRuntime(FlowerRuntime):
    """The runtime on Flower that receives sums of uploads only."""

    def __init__(
        self,
        *args: Any,
        settings: SumSettings,
        typical_update: TypicalUpdate | None = None,
        **kwargs: Any,
    ) -> None:
        """`typical_update` is that of earlier rounds; other arguments are FlowerRuntime's."""
        super().__init__(*args, **kwargs)
        self._settings = settings
        self._layout = VectorLayout.of(self._schema)
        self._typical_update = typical_update

    def required(self, asked: int) -> int:
        """Return how many of `asked` clients must send a valid upload."""
        return max(super().required(asked), MIN_UPLOADS)

    def finished(self, round: Round) -> None:
        """Keep the typical update of a round, and notify clients that were dropped."""
        self._typical_update = round.typical_update
        super().finished(round)

    def exchange(
        self, round: int, clients: Sequence[str], message: Callable[[str], Tree]
    ) -> Iterator[Reply]:
        """Run the phases of a round; return a reply for each client, in their order."""
        asked = len(clients)
        required = max(self.required(asked), min(self._limits.min_uploads, asked))
        self._roster.wait(clients, required, self._limits.timeout)
        self._without_upload.clear()
        self._roster.refresh()
        images = self._connected_images(clients)
        for client in clients:
            if client not in images:
                self._without_upload.add(client)

        def sent(client: str) -> Tree:
            self._on_sent(client)
            return message(client)

        given = RoundInput(
            images=images,
            message=sent,
            max_weight=self._max_weight(clients),
            norm_limit=self._norm_limit(round, len(images)),
            required=required,
            timeout=self._limits.timeout,
            ttl=2 * self._limits.timeout + TTL_MARGIN,
            on_upload=lambda client: self._on_client(_masked(client)),
        )
        return self._replies(round, clients, given)

    def _connected_images(self, clients: Sequence[str]) -> dict[str, int]:
        """Return the number of images that each connected client declared at first."""
        images = {}
        for client in clients:
            if client in self._roster.nodes:
                declared = self._roster.hellos[client].clients[client]
                images[client] = self._declared.setdefault(client, declared)
        return images

    def _max_weight(self, clients: Sequence[str]) -> float:
        """Return the number of images above which counts are cut, as in every run."""
        counts = [self._declared[client] for client in clients if client in self._declared]
        return largest_count(counts, self._settings.max_share)

    def _norm_limit(self, round: int, clients: int) -> float | None:
        """Return the largest norm of a client's update; None where there is no reference.

        The reference is a mean update. If updates of equal norm are uncorrelated, their mean is
        shorter by the square root of their number; if they agree, it is not shorter.
        """
        bound = self._settings.guard.norm_bound
        if not bound or self._typical_update is None:
            return None
        lr = self._settings.lr_at(round)
        typical = self._typical_update.norm_at(lr, images=0, max_ratio=1.0)
        return min(bound * math.sqrt(clients) * typical, LARGEST_NORM)

    def _replies(self, round: int, clients: Sequence[str], given: RoundInput) -> Iterator[Reply]:
        if not given.images:
            yield from (_failed(client, NOT_CONNECTED) for client in clients)
            return
        secure_round = self._open_round(round, given)
        mean: SecureMean | None = None
        failure = ""
        try:
            mean = secure_round.run()
        except SecureSumError as problem:
            failure = str(problem)
        self._without_upload |= secure_round.informed
        upload: Tree = {}
        if mean is not None:
            upload = to_device(mean.models, self._device)
        for client in clients:
            counts = secure_round.counts.get(client)
            if client not in given.images:
                yield _failed(client, NOT_CONNECTED)
            elif client in secure_round.dropped:
                yield _failed(client, secure_round.dropped[client])
            elif mean is None or counts is None:
                # With an upload, though an empty one: the client's memory has advanced.
                trained: Tree | None = None if counts is None else {}
                yield _failed(client, failure)._replace(upload=trained)
            else:
                reply = self._mean_reply(client, counts, mean, upload)
                notes = {CLIENTS_IN_SUM: float(len(secure_round.counts))}
                yield reply._replace(round=round, notes=notes)

    def _open_round(self, round: int, given: RoundInput) -> SecureRound:
        task = self._make_task(next(iter(given.images)), round)
        secure_sum = SecureSum(
            SessionId.of(task),
            words=self._layout.words,
            fraction=self._settings.threshold,
            uniform=self._settings.uniform,
        )
        exchange = PhaseExchange(self._grid, self._roster, self._make_task)
        return SecureRound(exchange, secure_sum, self._layout, given)

    def _mean_reply(self, client: str, counts: SentCounts, mean: SecureMean, upload: Tree) -> Reply:
        """Return the mean as the reply of a client in the sum."""
        metrics = Metrics(
            steps=counts.steps,
            images=counts.trained,
            seconds=counts.seconds,
            **mean.metrics._asdict(),
        )
        return Reply(
            client,
            counts.images,
            upload,
            metrics,
            sent_bytes=self._layout.words * WORD_BYTES,
        )


def _masked(client: str) -> Reply:
    """Return the reply of a client whose upload was added to the sum, for progress displays."""
    return Reply(client, 0, None, metrics=None)


def _failed(client: str, reason: str) -> Reply:
    return Reply(client, 0, None, metrics=None, error=reason)
