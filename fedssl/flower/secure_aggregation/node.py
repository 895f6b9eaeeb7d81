"""A node's part of a secure sum: one function for each message of a round.

The client's memory advances in the third phase, before its masked vector is sent, as it does before
a plain upload.
"""

from __future__ import annotations

from fedssl.core.console import print_to_stderr
from fedssl.core.errors import ClientError
from fedssl.core.state.tree import Tree
from fedssl.engine.uploads.guard import reply_error
from fedssl.engine.uploads.records import Reply
from fedssl.engine.uploads.running_statistics import variance_fault
from fedssl.engine.uploads.validate import check_update
from fedssl.flower.messages import RoundTask
from fedssl.flower.node import Node
from fedssl.flower.secure_aggregation import client
from fedssl.flower.secure_aggregation.client import Advertised, Finished, Masked, Revealed, Shared
from fedssl.flower.secure_aggregation.masks import Mask, Words, apply_masks
from fedssl.flower.secure_aggregation.messages import (
    MaskRequest,
    SentCounts,
    SentRevealed,
    SentShares,
    UnmaskRequest,
    to_sent,
)
from fedssl.flower.secure_aggregation.roster import Member, SecureRoster, SessionId
from fedssl.flower.secure_aggregation.storage import SecretFile
from fedssl.flower.secure_aggregation.vector import VectorLayout, upload_digest


class SecureNode:
    """The clients of a node in the phases of a secure sum."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def advertise_keys(self, task: RoundTask) -> Member:
        """Round 0: make the client's keys and return the public ones."""
        state, public = client.advertise_keys(SessionId.of(task))
        identity = self._secrets(task).begin(state)
        return Member(public.encryption, public.masking, identity)

    def share_keys(self, task: RoundTask, roster: SecureRoster) -> SentShares:
        """Round 1: return encrypted shares of the client's secrets for each other client."""

        def step(state: Advertised) -> tuple[Shared, dict[int, bytes]]:
            return client.share_keys(state, roster)

        return SentShares(self._secrets(task).advance(Advertised, step))

    def train_masked(
        self, task: RoundTask, request: MaskRequest, message: Tree
    ) -> tuple[SentCounts, Words]:
        """Round 2: train, and return the masked upload with the counts that stay visible."""

        def step(state: Shared) -> tuple[Masked, tuple[SecureRoster, list[Mask]]]:
            _check_digest(state.roster, state.session, request.digest)
            masked, masks = client.receive_shares(state, request.ciphertexts)
            return masked, (state.roster, masks)

        secrets = self._secrets(task)
        roster, masks = secrets.advance(Shared, step)
        try:
            reply = self._node.train_round(task, message)
            words = self._encode(reply, message, roster, norm_limit=request.norm_limit)
            assert reply.upload is not None
            secrets.record_upload(upload_digest(reply.upload))
        except Exception:
            secrets.finish()
            raise
        apply_masks(words, masks)
        metrics = reply.metrics
        assert metrics is not None
        counts = SentCounts(int(reply.images), metrics.images, metrics.steps, metrics.seconds)
        return counts, words

    def unmask(self, task: RoundTask, request: UnmaskRequest) -> SentRevealed:
        """Round 4: return the shares that unmask the sum of the survivors, and forget the rest."""

        def step(state: Masked) -> tuple[Finished, Revealed]:
            _check_digest(state.roster, state.session, request.digest)
            return Finished(state.session), client.unmask(state, request.survivors)

        return to_sent(self._secrets(task).reveal(step, request.survivors))

    def _secrets(self, task: RoundTask) -> SecretFile:
        return SecretFile(self._node.open_memory(task), SessionId.of(task))

    def _encode(
        self, reply: Reply, message: Tree, roster: SecureRoster, *, norm_limit: float | None
    ) -> Words:
        """Return an upload as words, if it passes the checks that a server makes otherwise."""
        algorithm = self._node.experiment.algorithm
        schema = algorithm.upload_schema(self._node.trainer.method)
        error = reply.error or reply_error(reply, schema)
        if error is not None or reply.upload is None or reply.metrics is None:
            raise ClientError(error or "it has not trained")
        error = variance_fault(reply.upload) or self._norm_error(reply.upload, message, norm_limit)
        if error is not None:
            raise ClientError(error)
        layout = VectorLayout.of(schema)
        if layout.words != roster.words:
            raise ClientError(f"its upload has {layout.words} words, not {roster.words}")
        share = roster.share(int(reply.images), uniform=algorithm.weights == "uniform")
        return layout.encode(reply.upload, reply.metrics, share)

    def _norm_error(self, upload: Tree, message: Tree, limit: float | None) -> str | None:
        """Return why the update is too large; None if it is not."""
        sent = dict(message)
        for key, sent_as in self._node.experiment.algorithm.received_keys(upload).items():
            sent[key] = message[sent_as]
        norm, error = check_update(sent, upload)
        if error is not None or norm is None or limit is None or norm <= limit:
            return error
        # The norm itself is in the node's log only: the server must not learn it.
        print_to_stderr(f"the norm of the update is {norm:.3g}")
        return f"the norm of its update is above the limit of {limit:.3g}"


def _check_digest(roster: SecureRoster, session: SessionId, digest: bytes) -> None:
    """Raise ClientError if a message belongs to another roster."""
    if roster.digest(session) != digest:
        raise ClientError("the message is of another roster of the secure sum")
