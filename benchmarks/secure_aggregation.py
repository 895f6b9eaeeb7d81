"""Measure secure aggregation: CPU seconds and bytes, for each client and for the server.

    python -m benchmarks.secure_aggregation [--clients 5 20] [--parameters 500000 11000000]
                                            [--out results/speed/secure-aggregation.json]

All parties are in one process and run one after another on one core; messages are encoded as on
Flower and measured, but not sent. Each client uploads a random model. One case is without dropouts,
and in one a client drops out before its upload, so that the server must remove its masks. The sum
is compared with that of the vectors without masks. Seconds are those of the processor, so that
other processes do not count; those of a client are the mean over clients. Bytes are those of the
messages between a client and the server, without the global model, as means over all clients.
"""

from __future__ import annotations

import argparse
import json
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from flwr.app import RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from benchmarks.machine import machine
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.flower.messages import RoundTask
from fedssl.flower.secure_aggregation import client as protocol
from fedssl.flower.secure_aggregation import messages as wire
from fedssl.flower.secure_aggregation.client import Advertised, Masked, Shared
from fedssl.flower.secure_aggregation.masks import Words, apply_masks
from fedssl.flower.secure_aggregation.roster import (
    IDENTITY_BYTES,
    Member,
    SecureRoster,
    SessionId,
)
from fedssl.flower.secure_aggregation.server import SecureSum
from fedssl.flower.secure_aggregation.vector import VectorLayout
from fedssl.training.trainer import Metrics

SESSION = SessionId("0" * 32, 0, 0)
THRESHOLD = 0.67
IMAGES = 100
METRICS = Metrics(1.0, 10, IMAGES, 1.0, 0.9, 20.0, 0.5, -2.0)
T = TypeVar("T")


class Case(NamedTuple):
    """One measurement."""

    clients: int
    parameters: int
    dropouts: int


class Clock:
    """Seconds and bytes by phase."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    def timed(self, phase: str, work: Callable[..., T], *arguments: Any) -> T:
        """Return the result of `work`, and add its duration to a phase."""
        start = time.process_time()
        result = work(*arguments)
        self.seconds[phase] += time.process_time() - start
        self.calls[phase] += 1
        return result

    def count(self, direction: str, records: RecordDict) -> None:
        """Add the size of a message's objects, as Flower serializes them."""
        objects = get_all_nested_objects(records)
        self.sent[direction] += sum(len(value.deflate()) for value in objects.values())


class Federation:
    """A server and clients in one process."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.clock = Clock()
        self.names = [str(i) for i in range(case.clients)]
        self.model = Layout.of([Entry("backbone.weight", (case.parameters,), "weight")])
        self.layout = VectorLayout({"model": self.model})
        self.server = SecureSum(SESSION, words=self.layout.words, fraction=THRESHOLD, uniform=False)

    def run(self) -> bool:
        """Run a round; True if the sum is that of the vectors without masks."""
        roster, advertised = self._advertise()
        shared = self._share(roster, advertised)
        masked, expected = self._mask(roster, shared)
        return bool(np.array_equal(self._unmask(masked), expected))

    def _task(self, client: str) -> RoundTask:
        return RoundTask(SESSION.run, client, SESSION.round, SESSION.attempt)

    def _advertise(self) -> tuple[SecureRoster, dict[str, Advertised]]:
        states = {}
        for name in self.names:
            state, keys = self.clock.timed("client: keys", protocol.advertise_keys, SESSION)
            states[name] = state
            member = Member(keys.encryption, keys.masking, secrets.token_bytes(IDENTITY_BYTES))
            self.clock.count("bytes up", wire.pack_answer(self._task(name), member))
            self.server.add_member(name, member, IMAGES)
        roster = self.server.make_roster()
        for _ in self.names:
            self.clock.count("bytes down", wire.add_request(RecordDict(), roster))
        return roster, states

    def _share(self, roster: SecureRoster, states: dict[str, Advertised]) -> dict[str, Shared]:
        shared = {}
        for name, state in states.items():
            shared[name], ciphertexts = self.clock.timed(
                "client: shares", protocol.share_keys, state, roster
            )
            answer = wire.pack_answer(self._task(name), wire.SentShares(ciphertexts))
            self.clock.count("bytes up", answer)
            self.server.add_ciphertexts(name, ciphertexts)
        return shared

    def _mask(
        self, roster: SecureRoster, states: dict[str, Shared]
    ) -> tuple[dict[str, Masked], Words]:
        masked = {}
        expected = np.zeros(self.layout.words, np.uint64)
        staying = self.names[self.case.dropouts :]
        for name, state in states.items():
            words = self._encode(name, roster)
            ciphertexts = self.server.ciphertexts_for(name)
            request = wire.MaskRequest(self.server.digest, ciphertexts, None)
            self.clock.count("bytes down", wire.add_request(RecordDict(), request))
            if name not in staying:
                continue
            expected += words
            masked[name] = self.clock.timed("client: masks", _mask, state, ciphertexts, words)
            counts = wire.SentCounts(IMAGES, IMAGES, 10, 1.0)
            answer = wire.add_vector(wire.pack_answer(self._task(name), counts), words)
            self.clock.count("bytes up", answer)
            vector = wire.read_vector(answer)
            self.clock.timed("server: sum", self.server.add_vector, name, vector)
        return masked, expected

    def _encode(self, name: str, roster: SecureRoster) -> Words:
        random = torch.Generator().manual_seed(int(name))
        floats = torch.randn(self.model.floats, generator=random)
        state = State(self.model, floats, torch.zeros(0, dtype=torch.int64))
        share = roster.share(IMAGES, uniform=False)
        return self.clock.timed(
            "client: fixed point", self.layout.encode, {"model": state}, METRICS, share
        )

    def _unmask(self, states: dict[str, Masked]) -> Words:
        survivors = tuple(self.server.survivors)
        request = wire.UnmaskRequest(self.server.digest, survivors)
        for name, state in states.items():
            self.clock.count("bytes down", wire.add_request(RecordDict(), request))
            revealed = self.clock.timed("client: reveal", protocol.unmask, state, survivors)
            answer = wire.pack_answer(self._task(name), wire.to_sent(revealed))
            self.clock.count("bytes up", answer)
            self.server.add_revealed(name, revealed)
        total, share = self.clock.timed("server: unmask", self.server.result)
        expected = total.copy()
        self.clock.timed("server: decode", self.layout.decode, total, share)
        return expected


def _mask(state: Shared, ciphertexts: dict[int, bytes], words: Words) -> Masked:
    """Mask a vector in place, and return the client's next state."""
    following, masks = protocol.receive_shares(state, ciphertexts)
    apply_masks(words, masks)
    return following


def measure(case: Case) -> dict[str, Any]:
    """Return the figures of one case."""
    federation = Federation(case)
    exact = federation.run()
    seconds = {}
    for phase, total in federation.clock.seconds.items():
        if phase.startswith("client"):
            total /= federation.clock.calls[phase]
        seconds[phase] = round(total, 4)
    figures: dict[str, Any] = {**case._asdict(), "exact": exact, "seconds": seconds}
    for side in ("client", "server"):
        figures[f"{side}_seconds"] = round(
            sum(value for phase, value in seconds.items() if phase.startswith(side)), 3
        )
    for direction, size in federation.clock.sent.items():
        figures[direction.replace(" ", "_")] = round(size / case.clients)
    figures["bytes_up_plain"] = 4 * case.parameters
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--parameters", type=int, nargs="+", default=[500_000, 11_000_000])
    parser.add_argument("--out", type=Path, default=Path("results/speed/secure-aggregation.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {"machine": machine(), "threshold": THRESHOLD, "cases": []}
    for clients in options.clients:
        for parameters in options.parameters:
            for dropouts in (0, 1):
                figures = measure(Case(clients, parameters, dropouts))
                print(json.dumps(figures))
                results["cases"].append(figures)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
