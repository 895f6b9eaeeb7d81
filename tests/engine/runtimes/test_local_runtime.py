"""The local runtime gives the same bits for any number of workers and any order of clients."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from factories import (
    first_site,
    first_sites,
    make_runtime,
    make_trainer,
    random_pixels,
)
from torch import Tensor

from fedssl.algorithms import FedAvg
from fedssl.core.errors import ClientError
from fedssl.core.files.blob_file import BlobFile
from fedssl.core.state.codec import dumps
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, Value
from fedssl.engine.checkpoints.client_memory import ClientMemory
from fedssl.engine.checkpoints.placement import Wanted
from fedssl.engine.federate import Round, federate
from fedssl.engine.runtimes.client_round import RoundPosition, RunContext, Shard
from fedssl.engine.runtimes.local import LocalRuntime
from fedssl.engine.uploads.records import Reply
from fedssl.method import Batch, Constants, Method, Output
from fedssl.topologies.topology import SERVER, Isolated, Star, Topology
from fedssl.training.client import Client
from fedssl.training.trainer import Stopped

SIZES = {"a": 20, "b": 33, "c": 2, "d": 60, "e": 41}
ROUNDS = 3


class Jittered(FedAvg):
    """FedAvg whose clients wait for different times in each run."""

    shuffle: int = 0

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        done = super().client_update(client, message)
        time.sleep(0.03 * random.Random(f"{self.shuffle} {client.id} {client.round}").random())
        return done


class Recalling(FedAvg):
    """FedAvg that records in a client's memory every round it took part in."""

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        upload, memory = super().client_update(client, message)
        return upload, {**memory, "rounds": f"{client.memory.get('rounds', '')}{client.round}"}


class Failing(FedAvg):
    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        if client.id == "b":
            raise ClientError("no electricity")
        if client.id == "d":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().client_update(client, message)


class Federation:
    """A federation without a run directory."""

    def __init__(
        self,
        name: str = "mocov2",
        workers: int = 1,
        algorithm: FedAvg | None = None,
        topology: Topology | None = None,
        sizes: dict[str, int] = SIZES,
        memory: ClientMemory | None = None,
    ) -> None:
        self.algorithm = algorithm or FedAvg()
        self.topology = topology or Star()
        self.trainers = [make_trainer(name) for _ in range(workers)]
        self.memory = memory or ClientMemory()
        self.stop = threading.Event()
        self.finished: list[str] = []
        shards = {c: Shard(random_pixels(n, seed)) for seed, (c, n) in enumerate(sizes.items())}
        self.runtime = LocalRuntime(
            RunContext(
                self.algorithm,
                3,
                lambda round: RoundPosition(0.05 / (round + 1), round / ROUNDS),
                stop=self.stop,
            ),
            shards,
            self.trainers,
            self.memory,
            on_client=lambda reply: self.finished.append(reply.client),
        )
        self.sites = first_sites(
            self.algorithm, self.topology, self.runtime.clients, self.trainers[0], seed=3
        )

    def rounds(self) -> Iterator[Round]:
        schema = self.algorithm.upload_schema(self.trainers[0].method)
        return federate(
            self.algorithm,
            self.topology,
            self.runtime,
            self.sites,
            schema=schema,
            rounds=ROUNDS,
            seed=3,
        )

    def run(self) -> tuple[dict[str, bytes], dict[str, bytes], list[Any]]:
        """Return sites and memories as bytes, and all reports without durations."""
        try:
            done = list(self.rounds())
        finally:
            self.runtime.close()
        reports = [
            r._replace(metrics=r.metrics and r.metrics._replace(seconds=0))
            for d in done
            for r in d.reports
        ]
        memory = {c: dumps(m.tree) for c, m in sorted(self.memory.snapshot().items())}
        return {s: dumps(t) for s, t in done[-1].sites.items()}, memory, reports


@pytest.mark.parametrize("name", ["mocov2", "byol"])
def test_the_same_bits_for_any_number_of_workers(name: str) -> None:
    alone = Federation(name).run()
    assert Federation(name).run() == alone
    for workers in (2, 3):
        assert Federation(name, workers).run() == alone


def test_the_same_bits_for_any_order_in_which_clients_finish() -> None:
    expected, orders = Federation("byol").run(), set()
    for shuffle in range(4):
        federation = Federation("byol", 3, Jittered(shuffle=shuffle))
        assert federation.run() == expected
        orders.add(tuple(federation.finished))
    assert len(orders) > 1, "clients always finished in the same order: nothing was shown"


@pytest.mark.parametrize("tier", ["device", "host", "disk"])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_same_bits_for_every_memory_tier(workers: int, tier: Wanted, tmp_path: Path) -> None:
    expected = Federation(algorithm=Recalling()).run()
    memory = ClientMemory(BlobFile(tmp_path / "rows"), tier=tier, ahead=workers)
    assert Federation(workers=workers, algorithm=Recalling(), memory=memory).run() == expected
    memory.close()
    assert (tmp_path / "rows").exists() == (tier == "disk")


def test_an_abandoned_exchange_leaves_nothing_behind() -> None:
    """A client that still trains when its round is abandoned writes nothing into the next
    attempt.
    """
    held, waiting, go_on = [], threading.Event(), threading.Event()

    class Held(Recalling):
        def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
            done = super().client_update(client, message)
            if client.id == "b" and not held:
                held.append(client)
                waiting.set()
                go_on.wait(10)
                return done[0], {"rounds": "late"}
            return done

    federation = Federation("byol", 2, Held())
    clients = ["a", "b"]
    replies = federation.runtime.exchange(0, clients, lambda c: federation.sites[SERVER])
    next(replies)
    assert waiting.wait(10)  # or it would never have begun
    replies.close()
    again = federation.runtime.exchange(0, clients, lambda c: federation.sites[SERVER])
    assert [r.error for r in again] == [None, None]
    go_on.set()
    federation.runtime.close()
    assert federation.finished.count("b") == 2
    assert [federation.memory.latest(c)["rounds"] for c in "ab"] == ["0", "0"]


def test_rounds_and_seeds_matter() -> None:
    federation = Federation()
    states = [dumps(r.sites[SERVER]) for r in federation.rounds()]
    federation.runtime.close()
    assert len(set(states)) == ROUNDS


def test_an_isolated_client_does_not_depend_on_others() -> None:
    """Client d gets the same bits whichever other clients train in the same process."""
    together = Federation("byol", 2, topology=Isolated()).run()[0]
    everybody = {c: (n if c == "d" else 0) for c, n in SIZES.items()}
    single = Federation("byol", 1, topology=Isolated(), sizes=everybody).run()[0]
    assert together["d"] == single["d"]
    assert len(set(together.values())) == len(SIZES)


def test_replies_come_in_the_clients_order() -> None:
    federation = Federation(workers=3, algorithm=Jittered(shuffle=5))
    replies = list(
        federation.runtime.exchange(0, list("edcba"), lambda c: federation.sites[SERVER])
    )
    federation.runtime.close()
    assert [r.client for r in replies] == list("edcba")
    assert [r.images for r in replies] == [SIZES[c] for c in "edcba"]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (
            {"a": 8, "b": 16, "c": 40, "d": 16, "e": 16, "f": 16, "g": 60},
            ["b", "a", "c", "d", "e", "f", "g"],
        ),
        ({"a": 8, "b": 16, "c": 16, "d": 60}, ["d", "b", "c", "a"]),
    ],
)
def test_the_largest_client_of_each_group_starts_first(
    sizes: dict[str, int], expected: list[str]
) -> None:
    """With one worker, four uploads may wait. Clients start in groups of two, the larger one first;
    up to four clients are one group.
    """
    started: list[str] = []

    class Noting(FedAvg):
        def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
            started.append(client.id)
            return {}, {}

    federation = Federation(algorithm=Noting(), sizes=sizes)
    clients = list(sizes)
    replies = list(federation.runtime.exchange(0, clients, lambda c: federation.sites[SERVER]))
    federation.runtime.close()
    assert [r.client for r in replies] == list(sizes)
    assert started == expected


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_few_uploads_wait_to_be_merged(workers: int) -> None:
    """Until the second reply is consumed, each worker makes at most four uploads."""
    federation = Federation(workers=workers, sizes={f"{i:02}": 8 for i in range(30)})
    replies = federation.runtime.exchange(
        0, list(federation.runtime.clients), lambda c: federation.sites[SERVER]
    )
    next(replies)
    time.sleep(0.3)
    assert len(federation.finished) <= 4 * workers
    assert len(list(replies)) == 29
    federation.runtime.close()


@pytest.mark.parametrize("workers", [1, 3])
def test_memory_contains_the_client_s_own_rounds(workers: int) -> None:
    topology = Star(participation=0.5)
    federation = Federation("byol", workers, Recalling(), topology)
    federation.run()
    plans = [topology.plan(list(SIZES), round, 3).site_of for round in range(ROUNDS)]
    expected = {c: "".join(str(r) for r, plan in enumerate(plans) if c in plan) for c in SIZES}
    assert {c: federation.memory.latest(c).get("rounds", "") for c in SIZES} == expected
    assert {c: m.round for c, m in federation.memory.snapshot().items()} == {
        c: int(r[-1]) for c, r in expected.items() if r
    }


# -- what leaves a client --


def _tensors(value: Value) -> list[Tensor]:
    return (
        [value.floats, value.counts]
        if isinstance(value, State)
        else [value]
        if isinstance(value, Tensor)
        else []
    )


@pytest.mark.parametrize(
    "settings", [{}, {"aggregate": "both", "update": "both", "predictor": "local"}]
)
def test_images_never_appear_in_an_upload(settings: dict[str, Any]) -> None:
    """Neither their bytes nor any tensor of their type or size; nor in a memory."""
    federation = Federation("mocov2", algorithm=FedAvg(**settings))
    replies = federation.runtime.exchange(0, list("abcde"), lambda c: federation.sites[SERVER])
    for seed, reply in enumerate(replies):
        images = random_pixels(SIZES[reply.client], seed)
        assert reply.upload is not None
        for tree in (reply.upload, federation.memory.latest(reply.client)):
            assert not [t for v in tree.values() for t in _tensors(v) if t.dtype == torch.uint8]
            data = dumps(tree)
            for row in images.flatten(1):
                assert row[:12].numpy().tobytes() not in data
                assert (row[:12].float() / 255).numpy().tobytes() not in data
    federation.runtime.close()


def test_labels_are_not_loaded() -> None:
    def labels() -> Tensor:
        raise AssertionError("labels were loaded")

    trainer = make_trainer("byol")
    algorithm = FedAvg()
    runtime = make_runtime(algorithm, {"a": Shard(random_pixels(8), labels)}, trainer)
    site = first_site(algorithm, trainer)
    assert [r.error for r in runtime.exchange(0, ["a"], lambda c: site)] == [None]
    runtime.close()


# -- failing clients --


def test_an_empty_client_never_takes_part() -> None:
    federation = Federation(topology=Star(participation=0.5), sizes={**SIZES, "empty": 0})
    assert federation.runtime.clients == list(SIZES)
    asked = {report.client for done in federation.rounds() for report in done.reports}
    federation.runtime.close()
    assert "empty" not in asked
    assert "empty" not in federation.finished


def test_a_client_that_cannot_train_is_dropped_with_its_reason() -> None:
    """One image is too few, one client fails, one runs out of memory; the others are not
    affected.
    """
    sizes = {"a": 20, "b": 20, "c": 1, "d": 20, "e": 41}
    federation = Federation(workers=2, algorithm=Failing(), sizes=sizes)
    sites, memory, reports = federation.run()
    assert [r.dropped for r in reports[:5]] == [
        None,
        "no electricity",
        "too few images: training needs at least 2, but it has 1",
        "the device is out of memory; try a smaller train.batch",
        None,
    ]
    assert set(memory) == {"a", "e"}
    without = {c: n if c in "ae" else 0 for c, n in sizes.items()}
    assert Federation(sizes=without).run()[0] == sites


def test_after_a_failure_every_trainer_is_free_again() -> None:
    federation = Federation(workers=2, sizes=dict.fromkeys("abcdef", 1))
    for round in range(3):
        clients = list(federation.runtime.clients)
        replies = list(
            federation.runtime.exchange(round, clients, lambda c: federation.sites[SERVER])
        )
        assert all("too few images" in (r.error or "") for r in replies)
    federation.runtime.close()


def test_a_stop_ends_the_clients_and_discards_their_work() -> None:
    federation = Federation(workers=2)
    federation.stop.set()
    with pytest.raises(Stopped):
        list(federation.rounds())
    federation.runtime.close()
    assert federation.memory.snapshot() == {}
    assert federation.finished == []


class Twice(FedAvg):
    """Clients train a second time, on a thousand times the loss, but send the first result."""

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        done = super().client_update(client, message)
        client.train(self.louder, {}, self.draw)
        return done

    def louder(self, method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        return 1000 * method.loss(out, constants)


def test_the_first_of_several_trainings_is_reported() -> None:
    """Its model is the one that is sent; other trainings may appear in the algorithm's notes."""
    once, twice = (Federation("simclr", algorithm=a).run() for a in (FedAvg(), Twice()))
    assert once[0] == twice[0]
    assert once[2] == twice[2]


def test_on_client_is_called_as_soon_as_a_reply_exists() -> None:
    seen: list[Reply] = []
    federation = Federation()
    federation.runtime._on_client = seen.append
    replies = list(federation.runtime.exchange(0, list("abc"), lambda c: federation.sites[SERVER]))
    federation.runtime.close()
    assert {id(r) for r in seen} == {id(r) for r in replies}
    assert len(seen) == 3
    assert all(r.metrics and r.metrics.steps == max(1, SIZES[r.client] // 8) for r in replies)
