"""Answer the messages of a secure sum on a node."""

from __future__ import annotations

from flwr.app import Message, RecordDict

from fedssl.flower.codec import decode
from fedssl.flower.messages import ADVERTISE, SHARE, TRAIN_MASKED, RoundTask
from fedssl.flower.node import Node
from fedssl.flower.secure_aggregation.messages import (
    MaskRequest,
    UnmaskRequest,
    add_vector,
    pack_answer,
    read_request,
)
from fedssl.flower.secure_aggregation.node import SecureNode
from fedssl.flower.secure_aggregation.roster import SecureRoster


def handle(message: Message, task: RoundTask, node: Node) -> RecordDict:
    """Return the records of the answer to a message; raises if the client cannot answer."""
    records = message.content
    kind = message.metadata.message_type
    secure = SecureNode(node)
    if kind == ADVERTISE:
        return pack_answer(task, secure.advertise_keys(task))
    if kind == SHARE:
        return pack_answer(task, secure.share_keys(task, read_request(records, SecureRoster)))
    if kind == TRAIN_MASKED:
        request = read_request(records, MaskRequest)
        counts, words = secure.train_masked(task, request, decode(records))
        return add_vector(pack_answer(task, counts), words)
    return pack_answer(task, secure.unmask(task, read_request(records, UnmaskRequest)))
