"""The round loop over a runtime made of plain functions, with numbers worked out by hand."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pytest
from error_messages import raises
from factories import (
    ONE_WEIGHT,
    first_site,
    make_runtime,
    make_trainer,
    one_weight,
    random_pixels,
    train_rounds,
)

from fedssl.algorithm import Algorithm, Averaging, Spec, Upload
from fedssl.algorithms import FedAvg
from fedssl.core.errors import RunError
from fedssl.core.state import buffers
from fedssl.core.state.tree import Tree, Value, model
from fedssl.engine.federate import MAX_FAILED_ROUNDS, Round, federate
from fedssl.engine.means.median import Median
from fedssl.engine.round_rules import RoundRules
from fedssl.engine.uploads.records import Reply
from fedssl.engine.uploads.settings import GuardSettings
from fedssl.engine.uploads.upload_weights import ImageCounts
from fedssl.method import Method
from fedssl.topologies.topology import SERVER, TOPOLOGIES, Isolated, Plan, Star, Topology
from fedssl.training.client import Client

IMAGES = {"a": 1, "b": 2, "c": 5}
SCHEMA = {"model": ONE_WEIGHT}


def value(tree: Tree) -> float:
    return model(tree, "model").floats.item()


class Averaged(Algorithm):
    """The mean of the uploads; a message contains the client's id."""

    def upload_schema(self, method: Method) -> Mapping[str, Spec]:
        return SCHEMA

    def init(self, client: Client) -> Tree:
        return {"model": one_weight(0)}

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return {**site, "to": client_id}

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        raise NotImplementedError

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        total = mean()
        for upload in uploads:
            total.add(model(upload.tree, "model"), upload.weight)
        return {"model": total.result()}


class Fake:
    """Client a adds 1 to the model, b adds 2, c adds 5, or the amounts of `answers` in a round."""

    def __init__(
        self,
        clients: str = "abc",
        answers: Callable[[int, str, float], float | str | None] | None = None,
    ) -> None:
        self.clients, self.asked = list(clients), []
        self._answer = answers or (lambda round, client, x: x + IMAGES[client])

    def exchange(
        self, round: int, clients: Sequence[str], message: Callable[[str], Tree]
    ) -> Iterator[Reply]:
        for client in clients:
            sent = message(client)
            assert sent["to"] == client
            self.asked.append((round, client, value(sent)))
            answer = self._answer(round, client, value(sent))
            if isinstance(answer, float):
                yield Reply(client, IMAGES[client], {"model": one_weight(answer)}, None)
            else:
                yield Reply(client, 0, None, None, answer)


def rounds(
    runtime: Fake, topology: Topology, count: int = 2, start: int = 0, weights: str = "size"
) -> Iterator[Round]:
    algorithm = Averaged(weights=weights)  # type: ignore[arg-type]
    first = {site: {"model": one_weight(0)} for site in topology.sites(runtime.clients)}
    return federate(algorithm, topology, runtime, first, schema=SCHEMA, rounds=count, start=start)


@pytest.mark.parametrize(
    ("weights", "expected"), [("size", [30 / 8, 60 / 8]), ("uniform", [8 / 3, 16 / 3])]
)
def test_two_rounds_of_a_star(weights: str, expected: list[float]) -> None:
    """By size: (1·1 + 2·2 + 5·5)/8 = 30/8 more each round; uniform: (1 + 2 + 5)/3."""
    runtime = Fake()
    done = list(rounds(runtime, Star(), weights=weights))
    assert [value(r.sites[SERVER]) for r in done] == pytest.approx(expected)
    assert [(r.number, r.failed) for r in done] == [(0, False), (1, False)]
    assert [[report.client for report in r.reports] for r in done] == [["a", "b", "c"]] * 2
    assert [(r, c) for r, c, _ in runtime.asked] == [(r, c) for r in range(2) for c in "abc"]


def test_isolated_sites_receive_only_their_own_upload() -> None:
    done = list(rounds(Fake(), Isolated(), count=3))
    assert [{s: value(t) for s, t in r.sites.items()} for r in done] == [
        {"a": n, "b": 2 * n, "c": 5 * n} for n in (1.0, 2.0, 3.0)
    ]


def test_an_isolated_client_that_fails_keeps_its_model() -> None:
    def answer(round: int, client: str, x: float) -> float | str:
        return "ill" if client == "b" and round == 1 else x + 1

    done = list(rounds(Fake(answers=answer), Isolated(), count=3))
    assert [value(r.sites["b"]) for r in done] == [1, 1, 2]
    assert [value(r.sites["a"]) for r in done] == [1, 2, 3]
    assert not any(r.failed for r in done)


def test_rounds_are_made_one_at_a_time() -> None:
    runtime = Fake()
    going = rounds(runtime, Star(), count=5)
    assert runtime.asked == []
    next(going)
    assert {round for round, _, _ in runtime.asked} == {0}
    next(going)
    assert {round for round, _, _ in runtime.asked} == {0, 1}


def test_earlier_rounds_are_not_changed_by_later_ones() -> None:
    done = list(rounds(Fake(), Star(), count=3))
    assert len({value(r.sites[SERVER]) for r in done}) == 3


def test_resumed_rounds_equal_uninterrupted_ones() -> None:
    topology = Star(participation=0.5)
    through, first, rest = Fake(), Fake(), Fake()
    whole = list(rounds(through, topology, count=6))
    half = list(rounds(first, topology, count=3))[-1]
    algorithm = Averaged()
    resumed = list(
        federate(algorithm, topology, rest, half.sites, schema=SCHEMA, rounds=6, start=3)
    )
    assert first.asked + rest.asked == through.asked
    assert [r.number for r in resumed] == [3, 4, 5]
    assert value(resumed[-1].sites[SERVER]) == value(whole[-1].sites[SERVER])


def test_no_rounds_are_left() -> None:
    assert list(rounds(Fake(), Star(), count=2, start=2)) == []


def test_one_dropped_client_is_left_out_of_the_mean_with_a_reason() -> None:
    """Without b: (1·1 + 5·5)/6."""

    def answer(round: int, client: str, x: float) -> float | str:
        return math.nan if client == "b" else x + IMAGES[client]

    (done,) = rounds(Fake(answers=answer), Star(), count=1)
    assert value(done.sites[SERVER]) == pytest.approx(26 / 6)
    assert [report.dropped for report in done.reports] == [
        None,
        "model: contains NaN or infinite values",
        None,
    ]
    assert not done.failed


@pytest.mark.rows("U13")
def test_a_round_with_fewer_valid_uploads_than_required_discards_its_merge() -> None:
    """Two thirds of three are two. In round 2 only a sends a valid upload: its 1 is not added, and
    its norm does not change the bound.
    """

    def answer(round: int, client: str, x: float) -> float | str:
        return "ill" if round == 1 and client != "a" else x + 1

    sites = {SERVER: {"model": one_weight(0)}}
    done = []
    for finished in federate(
        Averaged(),
        Star(),
        Fake(answers=answer),
        sites,
        schema=SCHEMA,
        rounds=3,
        rules=RoundRules(GuardSettings(), quorum=lambda asked: math.ceil(asked * 2 / 3)),
    ):
        done.append(finished)
    assert [value(r.sites[SERVER]) for r in done] == [1, 1, 2]
    assert [r.failed for r in done] == [False, True, False]
    why = "only 1 of 3 clients sent a valid upload; 2 are required (quorum)"
    assert [(report.dropped, report.memory_advanced) for report in done[1].reports] == [
        (why, True),
        ("ill", False),
        ("ill", False),
    ]
    assert done[1].typical_update == done[0].typical_update


@pytest.mark.rows("U4")
def test_a_failed_round_keeps_the_model() -> None:
    def answer(round: int, client: str, x: float) -> float | str:
        return "ill" if round in (1, 2) else x + 1

    done = list(rounds(Fake(answers=answer), Star(), count=5))
    assert [value(r.sites[SERVER]) for r in done] == [1, 1, 1, 2, 3]
    assert [r.failed for r in done] == [False, True, True, False, False]


@pytest.mark.rows("U4")
def test_three_failed_rounds_in_a_row_end_the_run() -> None:
    going, done = (
        rounds(
            Fake(answers=lambda round, client, x: x + 1 if round < 2 else "ill"), Star(), count=9
        ),
        [],
    )
    with raises(RunError):
        done.extend(going)
    assert [r.failed for r in done] == [False, False, *[True] * MAX_FAILED_ROUNDS]
    assert value(done[-1].sites[SERVER]) == 2


@pytest.mark.rows("U13")
def test_a_single_valid_upload_is_not_merged() -> None:
    """Round 2 has only a's upload: the server keeps its model, and the log has the reason. Without
    the rule, a's model would be everyone's.
    """

    def answer(round: int, client: str, x: float) -> float | str:
        return "ill" if round == 1 and client != "a" else x + 1

    def last(admission: RoundRules) -> Round:
        sites = {SERVER: {"model": one_weight(0)}}
        return list(
            federate(
                Averaged(),
                Star(),
                Fake(answers=answer),
                sites,
                schema=SCHEMA,
                rounds=2,
                rules=admission,
            )
        )[-1]

    done = last(RoundRules(min_uploads=2))
    assert done.failed
    assert value(done.sites[SERVER]) == 1
    why = "valid uploads in this round: 1; a merge needs 2 (guard.min_uploads)"
    reports = [(report.dropped, report.memory_advanced) for report in done.reports]
    assert reports == [(why, True), ("ill", False), ("ill", False)]
    assert value(last(RoundRules()).sites[SERVER]) == 2


@pytest.mark.rows("U10")
def test_a_merged_model_with_a_fault_is_not_used() -> None:
    def above_one(site: Tree) -> str | None:
        return f"{value(site):g} is above 1" if value(site) > 1 else None

    sites = {SERVER: {"model": one_weight(0)}}
    runtime = Fake(answers=lambda round, client, x: x + 1)
    admission = RoundRules(model_fault=above_one)
    going = federate(Averaged(), Star(), runtime, sites, schema=SCHEMA, rounds=9, rules=admission)
    done = []
    with raises(RunError):
        done.extend(going)
    assert [value(round.sites[SERVER]) for round in done] == [1, 1, 1, 1]
    assert {report.dropped for report in done[-1].reports} == {
        "the merged model is rejected: 2 is above 1"
    }


def test_of_peers_only_those_with_a_fault_keep_their_model() -> None:
    """a adds 1, b 2, c 5, each alone at its site: only c gets above 4."""

    def above_four(site: Tree) -> str | None:
        return "above 4" if value(site) > 4 else None

    sites = {site: {"model": one_weight(0)} for site in "abc"}
    admission = RoundRules(model_fault=above_four)
    (done,) = federate(
        Averaged(), Isolated(), Fake(), sites, schema=SCHEMA, rounds=1, rules=admission
    )
    assert {site: value(tree) for site, tree in done.sites.items()} == {"a": 1, "b": 2, "c": 0}
    assert [report.dropped for report in done.reports] == [
        None,
        None,
        "the merged model is rejected: above 4",
    ]


def test_a_failed_round_changes_no_reference() -> None:
    """Both updates are 1 in the first round; the second has one update, of 9, and is not merged."""

    def answer(round: int, client: str, x: float) -> float | str:
        if round == 0:
            return x + 1
        return "ill" if client == "b" else x + 9

    sites = {SERVER: {"model": one_weight(0)}}
    runtime = Fake("ab", answers=answer)
    admission = RoundRules(GuardSettings(typical="last"), min_uploads=2)
    first, second = federate(
        Averaged(), Star(), runtime, sites, schema=SCHEMA, rounds=2, rules=admission
    )
    assert first.typical_update is not None
    assert first.typical_update.norm == 1
    assert second.typical_update == first.typical_update


@pytest.mark.rows("U11")
def test_a_client_that_claims_more_than_it_declared_is_dropped() -> None:
    counts = ImageCounts(lambda: {"a": 1, "b": 2, "c": 4})  # c has 5 and reports 5
    sites = {SERVER: {"model": one_weight(0)}}
    (done,) = federate(
        Averaged(),
        Star(),
        Fake(),
        sites,
        schema=SCHEMA,
        rounds=1,
        rules=RoundRules(counts=counts),
    )
    assert [report.dropped for report in done.reports] == [
        None,
        None,
        "claims 5 images, but declared 4 when it joined",
    ]


def test_failures_are_counted_in_a_row() -> None:
    answers = [math.nan, math.nan, 1.0, math.nan, math.nan, 1.0]
    done = list(rounds(Fake(answers=lambda round, client, x: answers[round]), Star(), count=6))
    assert [r.failed for r in done] == [True, True, False, True, True, False]


def test_only_sampled_clients_take_part() -> None:
    topology = Star(participation=0.34)
    runtime = Fake()
    done = list(rounds(runtime, topology, count=8))
    for number, finished in enumerate(done):
        expected = list(topology.plan(runtime.clients, number, 0).site_of)
        assert [report.client for report in finished.reports] == expected
        assert [c for r, c, _ in runtime.asked if r == number] == expected
        assert len(expected) == 1


class Pair(Topology):
    """Two sites: x merges a and b with fixed weights, y merges c and b."""

    def sites(self, clients: object) -> list[str]:
        return ["x", "y"]

    def plan(self, clients: object, round: int, seed: int) -> Plan:
        return Plan(
            {"a": "x", "b": "x", "c": "y"}, {"x": {"a": 0.25, "b": 0.75}, "y": {"b": 0.5, "c": 0.5}}
        )


def test_sites_that_share_a_client() -> None:
    """x: 0.25·1 + 0.75·2 = 1.75; y: 0.5·2 + 0.5·5 = 3.5. In round 2 a and b start from x, c from y:
    x: 1.75 + 1.75 = 3.5; y: 0.5·(1.75 + 2) + 0.5·(3.5 + 5) = 6.125.
    """
    done = list(rounds(Fake(), Pair(), weights="uniform"))
    assert [(value(r.sites["x"]), value(r.sites["y"])) for r in done] == [(1.75, 3.5), (3.5, 6.125)]


@pytest.mark.parametrize("name", TOPOLOGIES.names())
def test_one_client_gives_the_same_in_every_topology(name: str) -> None:
    topology = TOPOLOGIES[name](**({"edges": ()} if name == "edges" else {}))
    done = list(rounds(Fake("b"), topology, count=3))
    assert [value(next(iter(r.sites.values()))) for r in done] == [2, 4, 6]


def test_a_merge_that_stops_early_still_consumes_all_replies() -> None:
    class First(Averaged):
        def merge(
            self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]
        ) -> Tree:
            return next(iter(uploads)).tree

    sites = {SERVER: {"model": one_weight(0)}}
    finished = next(federate(First(), Star(), Fake(), sites, schema=SCHEMA, rounds=1))
    assert [report.client for report in finished.reports] == ["a", "b", "c"]


class Sent(dict[str, Value]):
    """An upload that supports weak references."""


@pytest.mark.parametrize("topology", [Star(), Isolated()])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_few_uploads_are_alive_at_a_time(workers: int, topology: Topology) -> None:
    """One being merged, and one for each worker."""
    alive: set[int] = set()
    peak = [0]

    class Watched(FedAvg):
        def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
            upload, memory = super().client_update(client, message)
            sent = Sent(upload)
            alive.add(id(sent))
            weakref.finalize(sent, alive.discard, id(sent))
            peak.append(len(alive))
            return sent, memory

    trainers = [make_trainer("simclr") for _ in range(workers)]
    shards = {f"{i:02}": random_pixels(8) for i in range(12)}
    done = train_rounds(Watched(), shards, *trainers, topology=topology)
    assert [len(r.reports) for r in done] == [12, 12]
    assert max(peak) <= 1 + workers
    assert not alive


@pytest.mark.parametrize("name", ["simclr", "byol"])
def test_later_rounds_allocate_no_new_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memories, uploads and merged models reuse buffers of earlier rounds."""
    mapped: list[int] = []
    new = buffers._allocate
    monkeypatch.setattr(buffers, "_allocate", lambda size: (mapped.append(size), new(size))[1])
    buffers._spare.clear()
    algorithm = FedAvg()
    trainer = make_trainer(name, hidden=300, dim=300)
    runtime = make_runtime(algorithm, {f"{i:02}": random_pixels(8) for i in range(6)}, trainer)
    sites = {SERVER: first_site(algorithm, trainer)}
    done = federate(
        algorithm, Star(), runtime, sites, schema=algorithm.upload_schema(trainer.method), rounds=9
    )
    del sites
    by_round = [len(mapped) for _ in done]
    runtime.close()
    assert by_round[0] > 0, "the model is too small to tell"
    assert by_round[-1] <= by_round[0] + 4  # the overlap of clients varies a little


def test_each_client_gets_one_message_and_its_norm_refers_to_it() -> None:
    made: list[str] = []

    class Counting(Averaged):
        def broadcast(self, site: Tree, client_id: str) -> Tree:
            made.append(client_id)
            return super().broadcast(site, client_id)

    sites = {SERVER: {"model": one_weight(0)}}
    done = list(federate(Counting(), Star(), Fake(), sites, schema=SCHEMA, rounds=2))
    assert made == list("abcabc")
    assert [[report.divergence for report in r.reports] for r in done] == [[1.0, 2.0, 5.0]] * 2


def test_unexpected_replies_change_nothing() -> None:
    """b replies twice, a first sends a late reply to round 1, and an unknown client replies."""

    class Noisy(Fake):
        def exchange(
            self, round: int, clients: Sequence[str], message: Callable[[str], Tree]
        ) -> Iterator[Reply]:
            for reply in super().exchange(round, clients, message):
                if reply.client == "a" and round == 1:
                    yield reply._replace(upload={"model": one_weight(99)}, round=0)
                yield reply._replace(round=round)
                if reply.client == "b":
                    yield reply._replace(upload={"model": one_weight(99)})
                    yield reply._replace(client="x")

    expected, done = list(rounds(Fake(), Star())), list(rounds(Noisy(), Star()))
    assert [value(r.sites[SERVER]) for r in done] == [value(r.sites[SERVER]) for r in expected]
    assert [[report.client for report in r.reports if report.dropped] for r in done] == [
        ["b", "x"],
        ["a", "b", "x"],
    ]
    assert not any(r.failed for r in done)


def test_a_mean_with_too_few_uploads_fails_the_round() -> None:
    """Of a, b and c, only two answer in round 2, but a median needs three: the server keeps its
    model, the log has the reason, and the next round counts. The medians are 2 and 2 + 2.
    """

    def answer(round: int, client: str, x: float) -> float | str:
        return "ill" if round == 1 and client == "a" else x + IMAGES[client]

    sites = {SERVER: {"model": one_weight(0)}}
    done = list(
        federate(
            Averaged(),
            Star(),
            Fake(answers=answer),
            sites,
            schema=SCHEMA,
            rounds=3,
            mean=Median().start,
        )
    )
    assert [value(round.sites[SERVER]) for round in done] == [2, 2, 4]
    assert [round.failed for round in done] == [False, True, False]
    why = "the median needs at least 3 uploads, but there are 2"
    assert [report.dropped for report in done[1].reports] == ["ill", why, why]


def test_of_peers_only_those_with_too_few_uploads_keep_their_model() -> None:
    """In a path a – b – c, only b merges three uploads: the median of 1, 2 and 5."""
    topology = TOPOLOGIES["edges"](edges=[("a", "b"), ("b", "c")])
    sites = {site: {"model": one_weight(0)} for site in "abc"}
    (done,) = federate(
        Averaged(), topology, Fake(), sites, schema=SCHEMA, rounds=1, mean=Median().start
    )
    assert {site: value(tree) for site, tree in done.sites.items()} == {"a": 0, "b": 2, "c": 0}
    assert [report.dropped is None for report in done.reports] == [False, True, False]
