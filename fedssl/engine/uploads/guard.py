"""The guard: decide which uploads of a round count, lazily and in the clients' order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from itertools import islice

from fedssl.core.state.tree import Tree, nbytes
from fedssl.engine.uploads.movement import apply_bound, is_untrained, largest_shift
from fedssl.engine.uploads.norm_bound import WARMUP_UPLOADS, Movement, NormBound
from fedssl.engine.uploads.records import (
    NO_NOTES,
    NO_TREE,
    Candidate,
    Reply,
    Report,
    loggable_notes,
    sanitize,
)
from fedssl.engine.uploads.running_statistics import variance_fault
from fedssl.engine.uploads.upload_weights import UploadWeights
from fedssl.engine.uploads.validate import Schema, check_update, drop_bad_rows, validation_error
from fedssl.topologies.topology import Plan

NO_PLAN = Plan({}, {})


class Guard:
    """Validates the replies of one round and keeps a report of every client.

    Replies are processed lazily, one at a time. No reference to an upload is kept after it was
    passed on, so that at most a few uploads are in memory: those that must wait to be compared with
    each other.
    """

    def __init__(
        self,
        schema: Schema,
        round: int,
        clients: Iterable[str],
        sent: MutableMapping[str, Tree],
        *,
        bound: NormBound | None = None,
        bounded: Collection[str] = (),
        weights: UploadWeights | None = None,
        received_keys: Callable[[Tree], Mapping[str, str]] = lambda upload: {},
        statistics_reference: Callable[[str], Tree] = lambda client: {},
    ) -> None:
        """`clients` take part in the round; `sent` has their messages, removed when answered.

        Updates of clients in `bounded` are limited by `bound`. `weights` has the image counts that
        clients declared, and their shares of the mean. `received_keys` returns the keys under which
        an upload's models were sent, where they differ. `statistics_reference` returns models that
        a client's running statistics are compared with although they were not sent.
        """
        self.schema = schema
        self.round = round
        self.sent = sent
        self.bound = bound or NormBound()
        self.reports: list[Report] = []
        self._awaited = set(clients)
        self._bounded = bounded
        self.weights = weights or UploadWeights(NO_PLAN, "size")
        self._received_keys = received_keys
        self._statistics_reference = statistics_reference

    def __call__(self, replies: Iterable[Reply]) -> Iterator[Candidate]:
        """Yield a candidate for every client that was asked and has replied, once."""
        checked = map(self._check, replies)
        decided = map(self._decide, self._in_order(checked))
        return filter(_is_expected, decided)  # a loop would hold an upload while the next is made

    def unexpected(self, reply: Reply) -> str | None:
        """Return why this round does not wait for a reply; None if it does."""
        if reply.round is not None and reply.round != self.round:
            return f"answers round {reply.round + 1} in round {self.round + 1}"
        if reply.client not in self._awaited:
            return "was not asked, or has answered already"
        return None

    def reject(self, reason: str, clients: Collection[str] | None = None) -> None:
        """Report uploads that were accepted as dropped: those of `clients`, or every one."""
        for i, report in enumerate(self.reports):
            if report.dropped is None and (clients is None or report.client in clients):
                self.reports[i] = report._replace(
                    dropped=reason, metrics=None, memory_advanced=True, notes=NO_NOTES
                )

    # -- each reply on its own --

    def _check(self, reply: Reply) -> Candidate:
        """Validate a reply without comparing it with others."""
        unexpected = self.unexpected(reply)
        if unexpected is not None:
            return Candidate(reply._replace(upload=None), unexpected, unexpected=True)
        self._awaited.remove(reply.client)
        message = self.sent.pop(reply.client, {})
        candidate = Candidate(
            reply, error=None, trained=reply.upload is not None, bytes_down=nbytes(message)
        )
        upload, dropped_rows_reason = drop_bad_rows(reply.upload or {}, self.schema)
        error = (
            reply.error
            or validation_error(reply.images, upload, self.schema)
            or self._count_error(reply)
        )
        if error is not None or reply.upload is None:
            return candidate.rejected(error or "no upload")
        sent = self._sent_models(message, upload)
        norm, error = check_update(sent, upload)
        error = error or variance_fault(upload)
        if error is not None:
            return candidate.rejected(error)
        return candidate._replace(
            reply=reply._replace(upload=upload),
            bytes_up=nbytes(reply.upload) if reply.sent_bytes is None else reply.sent_bytes,
            sent=sent,
            norm=norm,
            movement=self._movement(reply.client, sent, upload, norm),
            dropped_rows_reason=dropped_rows_reason,
        )

    def _count_error(self, reply: Reply) -> str | None:
        """Return why the number of images is wrong; None if it is the one that was declared."""
        declared = self.weights.declared.get(reply.client)
        if declared is None or int(reply.images) == declared:
            return None
        return f"claims {reply.images} images, but declared {declared} when it joined"

    def _sent_models(self, message: Tree, upload: Tree) -> Tree:
        """Return the message with its models under the keys of the upload."""
        models = dict(message)
        for key, sent_as in self._received_keys(upload).items():
            models[key] = message[sent_as]
        return models

    def _movement(
        self, client: str, sent: Tree, upload: Tree, norm: float | None
    ) -> Movement | None:
        if norm is None or client not in self._bounded:
            return None
        images = self.weights.verified_images(client)
        start = {**self._statistics_reference(client), **sent}
        shift = largest_shift(start, upload)
        return Movement(norm, images, shift, untrained=is_untrained(start, upload))

    # -- compared with each other --

    def _in_order(self, candidates: Iterator[Candidate]) -> Iterator[Candidate]:
        """Yield candidates in their order, holding those that must wait for others."""
        waiting: deque[Candidate] = deque()
        if self.bound.needs_first_uploads and self._bounded:
            self._collect_first(waiting, candidates)
        while waiting:
            yield waiting.popleft()
        while self._take(waiting, candidates):
            if any(map(self._must_wait, waiting)):
                continue
            while waiting:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()

    def _collect_first(self, waiting: deque[Candidate], candidates: Iterator[Candidate]) -> None:
        """Hold the first valid uploads of a round and take them as the round's reference."""
        valid = 0
        while valid < WARMUP_UPLOADS and self._take(waiting, candidates):
            valid += waiting[-1].error is None
        movements = [candidate.movement for candidate in waiting if candidate.movement is not None]
        self.bound = self.bound.with_first_uploads(movements)

    def _take(self, waiting: deque[Candidate], candidates: Iterator[Candidate]) -> bool:
        """Hold one more candidate; False if there is none. Leaves no name that refers to it."""
        count = len(waiting)
        waiting.extend(islice(candidates, 1))
        if len(waiting) == count:
            return False
        movement = waiting[-1].movement
        if movement is not None:
            self.bound = self.bound.with_arrival(movement)
        return True

    def _must_wait(self, candidate: Candidate) -> bool:
        return candidate.movement is not None and self.bound.must_wait(candidate.movement)

    def _decide(self, candidate: Candidate) -> Candidate:
        """Apply the bound, write the client's report, and return what is left of the candidate."""
        kept_fraction = None
        if candidate.upload is not None and candidate.movement is not None:
            bounded = apply_bound(
                self.bound,
                candidate.sent,
                candidate.upload,
                movement=candidate.movement,
                share=self.weights.share(candidate.client),
            )
            if bounded.error is not None:
                candidate = candidate.rejected(bounded.error)
            else:
                self.bound = self.bound.with_accepted(bounded.movement)
                candidate = candidate._replace(
                    reply=candidate.reply._replace(upload=bounded.upload)
                )
                kept_fraction = bounded.kept
        self.reports.append(_report(candidate, kept_fraction))
        return candidate._replace(sent=NO_TREE)


def _is_expected(candidate: Candidate) -> bool:
    return not candidate.unexpected


def _report(candidate: Candidate, kept_fraction: float | None) -> Report:
    """Return the line of the rounds log; `kept_fraction` of the update is set if it was clipped."""
    if candidate.error is not None:
        return Report(
            candidate.client,
            dropped=sanitize(candidate.error),
            bytes_down=candidate.bytes_down,
            memory_advanced=candidate.trained,
        )
    norm = candidate.norm
    if norm is not None and not math.isfinite(norm):
        norm = None  # JSON has no infinity
    dropped_rows_reason = candidate.dropped_rows_reason
    if dropped_rows_reason is not None:
        dropped_rows_reason = sanitize(dropped_rows_reason)
    return Report(
        candidate.client,
        dropped=None,
        metrics=candidate.reply.metrics,
        bytes_down=candidate.bytes_down,
        bytes_up=candidate.bytes_up,
        divergence=norm,
        notes=loggable_notes(candidate.reply.notes),
        clipped=kept_fraction,
        dropped_rows_reason=dropped_rows_reason,
    )


def reply_error(reply: Reply, schema: Schema) -> str | None:
    """Return why the guard would drop a reply without comparing it with others; None if not."""
    if reply.error is not None or reply.upload is None:
        return reply.error or "no upload"
    upload, _ = drop_bad_rows(reply.upload, schema)
    error = validation_error(reply.images, upload, schema)
    if error is not None:
        return error
    _, error = check_update({}, upload)
    return error
