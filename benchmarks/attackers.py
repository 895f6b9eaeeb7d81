"""Attacks of one malicious client, and a context in which client 0 of every local run is one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch

from fedssl.core.seeds import generator
from fedssl.core.state.layout import PARAMETERS
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.engine.runtimes.local import LocalRuntime
from fedssl.engine.uploads.records import Reply
from fedssl.engine.uploads.upload_weights import ImageCounts
from fedssl.runs import local

BAD = "0"
# The model that was sent, the honestly trained model -> the upload
Change = Callable[[State, State], State]


class Attack(NamedTuple):
    """The behaviour of the malicious client."""

    change: Change | None = None
    claims: int | None = None  # image count in its reply
    declares: int | None = None  # image count declared before the first round
    settings: Mapping[str, Any] = {}


def overwrite_statistics(name: str, value: float) -> Change:
    """Overwrite the running statistics of every layer."""

    def change(sent: State, trained: State) -> State:
        bad = trained.clone()
        for entry in bad.layout.entries:
            if entry.name.endswith(name):
                bad.view(entry).fill_(value)
        return bad

    return change


def shift_means(deviations: float) -> Change:
    """Move every running mean by this many standard deviations."""

    def change(sent: State, trained: State) -> State:
        bad = trained.clone()
        tensors = sent.tensors()
        for name, tensor in bad.tensors().items():
            if name.endswith("running_mean"):
                variance = tensors[name.replace("running_mean", "running_var")]
                tensor.copy_(tensors[name] + deviations * variance.sqrt())
        return bad

    return change


def scale_update(factor: float) -> Change:
    """Return sent + factor · (trained − sent), with running statistics and positive variances."""

    def change(sent: State, trained: State) -> State:
        floats = sent.floats + factor * (trained.floats - sent.floats)
        bad = State(trained.layout, floats, trained.counts)
        for entry in bad.layout.entries:
            if entry.name.endswith("running_var"):
                bad.view(entry).copy_(trained.view(entry))
        return bad

    return change


def random_update(factor: float) -> Change:
    """Return a random update of the parameters, `factor` times as long as the honest one."""

    def change(sent: State, trained: State) -> State:
        bad = trained.clone()
        stream = generator("random update", int(trained.counts.sum()))
        starts = sent.float_slices(PARAMETERS)
        length = factor * float(trained.distance(sent))
        directions = [torch.randn(len(start), generator=stream) for start in starts]
        norm = float(torch.linalg.vector_norm(torch.cat(directions)))
        rows = zip(bad.float_slices(PARAMETERS), starts, directions, strict=True)
        for target, start, direction in rows:
            target.copy_(start + direction * (length / norm))
        return bad

    return change


UNVERIFIED = Attack(claims=10**7, declares=10**7)
ATTACKS: dict[str, Attack] = {
    "honest": Attack(),
    "running_var = -1000": Attack(overwrite_statistics("running_var", -1000.0)),
    "running_var = 1e30": Attack(overwrite_statistics("running_var", 1e30)),
    "running_mean = 1e30": Attack(overwrite_statistics("running_mean", 1e30)),
    "running means moved by 1.4 deviations": Attack(shift_means(1.4)),
    "running means moved by 2 deviations": Attack(shift_means(2.0)),
    "claims 1e8 images": Attack(claims=10**8),
    "declares 1e7 images": UNVERIFIED,
    "declares 1e7 images, max_share = 1": UNVERIFIED._replace(settings={"guard.max_share": 1.0}),
    "declares 1e7 images, sign flip x 8": UNVERIFIED._replace(change=scale_update(-8.0)),
    "sign flip x 1": Attack(scale_update(-1.0)),
    "sign flip x 8": Attack(scale_update(-8.0)),
    "sign flip x 100": Attack(scale_update(-100.0)),
    "random x 8": Attack(random_update(8.0)),
}


@contextlib.contextmanager
def malicious(attack: Attack) -> Iterator[None]:
    """Replace client 0 of every local run by an attacker."""
    exchange = LocalRuntime.exchange

    def attacked(
        self: LocalRuntime, round: int, clients: Sequence[str], message: Callable[[str], Tree]
    ) -> Iterator[Reply]:
        for reply in exchange(self, round, clients, message):
            yield corrupt(reply, message) if reply.client == BAD else reply

    def corrupt(reply: Reply, message: Callable[[str], Tree]) -> Reply:
        if attack.change is not None and reply.upload is not None:
            sent = model(message(BAD), "model")
            changed = attack.change(sent, model(reply.upload, "model"))
            reply = reply._replace(upload={"model": changed})
        if attack.claims is not None:
            reply = reply._replace(images=attack.claims)
        return reply

    def declared(counts: Callable[[], Mapping[str, int]], verified: bool) -> ImageCounts:
        if attack.declares is None:
            return ImageCounts(counts, verified)
        stated = attack.declares
        return ImageCounts(lambda: {**counts(), BAD: stated}, verified=False)

    with (
        mock.patch.object(LocalRuntime, "exchange", attacked),
        mock.patch.object(local, "ImageCounts", declared),
    ):
        yield
