"""FeatARC by hand, on toy.py's numbers: under a model of weight w a client's image has the features
(w, 10).

Clients A, B, C are numbers 0, 1, 3, so that in round 1 A is in cluster 0, and B and C are in
cluster 1.
Round 1: all start from w = 10; A ends with 14, B with 18, C with 10. Cluster 0 is 14; cluster 1 is
    (18 + 10)/2 = 14.
Round 2: both clusters are at the same distance from every client, and the first is taken: B and C
    switch. All start from 14, each with its own target: A 12, B 16, C 10. A ends with 18, B with
    22, C with 14. Cluster 0 is (18 + 22 + 14)/3 = 18; cluster 1 is empty and keeps 14.
Round 3: A, at 18, equals cluster 0: D = −1; to cluster 1 it has −(18·14 + 10·10)/√(424·296) =
    −0.99360, since 18² + 10² = 424 and 14² + 10² = 296. B, at 22, has −(22·18 + 100)/√(584·424) =
    −0.99676 to cluster 0 and −(22·14 + 100)/√(584·296) = −0.98132 to cluster 1. C, at 14, equals
    cluster 1, and switches to it. A ends with 22, B with 26, C with 14: cluster 0 is 24, cluster 1
    is 14.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises
from factories import first_site, make_client, make_trainer, random_pixels, train_rounds
from torch import Tensor
from toy import Federation, Numbers

from fedssl.algorithm import Algorithm, Upload
from fedssl.algorithms import FeatARC, FedAvg
from fedssl.algorithms._feature_alignment import distance
from fedssl.core.errors import ConfigError
from fedssl.core.seeds import derive
from fedssl.core.state.mean import Mean
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, Value, model
from fedssl.engine.federate import Round
from fedssl.engine.runtimes.client_round import Shard
from fedssl.engine.uploads.guard import Guard
from fedssl.engine.uploads.records import Reply
from fedssl.method import METHODS
from fedssl.nets import CNN
from fedssl.topologies.topology import SERVER
from fedssl.training.trainer import Trainer, TrainSettings


def weights(states: Mapping[str, State]) -> dict[str, float]:
    return {name: state.tensors()["backbone.w"].item() for name, state in states.items()}


def own(federation: Federation, client: str) -> float:
    state = federation.personal(client)
    assert state is not None
    return state.tensors()["backbone.w"].item()


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_three_rounds_by_hand(lam: float) -> None:
    federation = Federation(FeatARC(lam=lam), {"A": 0, "B": 1, "C": 3})
    algorithm = federation.algorithm
    assert federation.round("A", "B", "C") == dict.fromkeys("ABC", Numbers(10, 10, 1))
    assert weights(algorithm.export(federation.site)) == {"cluster 0": 14, "cluster 1": 14}
    assert federation.notes["A"] == {"cluster": 0, "switched": 0}
    assert federation.notes["B"] == federation.notes["C"] == {"cluster": 1, "switched": 0}

    starts = federation.round("A", "B", "C")
    assert [starts[c][:2] for c in "ABC"] == [(14, 12), (14, 16), (14, 10)]
    assert weights(algorithm.export(federation.site)) == {"cluster 0": 18, "cluster 1": 14}
    assert [federation.notes[c]["cluster"] for c in "ABC"] == [0, 0, 0]
    assert [federation.notes[c]["switched"] for c in "ABC"] == [0, 1, 1]
    assert [own(federation, c) for c in "ABC"] == [18, 18, 18]

    starts = federation.round("A", "B", "C")
    assert [starts[c].online for c in "ABC"] == [18, 18, 14]
    assert weights(algorithm.export(federation.site)) == {"cluster 0": 24, "cluster 1": 14}
    assert federation.notes["A"] == pytest.approx(
        {"cluster": 0, "switched": 0, "distance.0": -1, "distance.1": -0.99360}, abs=1e-5
    )
    assert federation.notes["B"] == pytest.approx(
        {"cluster": 0, "switched": 0, "distance.0": -0.99676, "distance.1": -0.98132}, abs=1e-5
    )
    assert (federation.notes["C"]["cluster"], federation.notes["C"]["switched"]) == (1, 1)
    assert [own(federation, c) for c in "ABC"] == [24, 24, 14]


def test_clusters_are_unweighted_means_by_default() -> None:
    """A has 1 image and B has 3: (14 + 18)/2 = 16 or (14 + 3·18)/4 = 17."""
    for settings, expected in (({}, 16), ({"weights": "size"}, 17)):
        federation = Federation(FeatARC(clusters=1, **settings))
        federation.round("A", "B")
        assert weights(federation.algorithm.export(federation.site)) == {"cluster 0": expected}


def test_the_memory_and_the_personal_model_of_a_client() -> None:
    federation = Federation(FeatARC())
    assert federation.personal("A") is None
    federation.round("A", "B")
    memory = federation.memory["B"]
    assert (memory["cluster"], model(memory, "local").layout.parts) == (1, ("backbone",))
    assert model(memory, "kept").layout.parts == ("target",)
    # A member's model is its cluster's, not a copy: it is measured once for any number of members.
    assert federation.personal("B") is federation.algorithm.export(federation.site)["cluster 1"]
    alone = Federation(FeatARC(clusters=1))
    alone.round("A", "B")
    assert alone.memory["B"].keys() == {"kept", "cluster"}


def test_first_clusters_depend_on_the_number_and_later_ones_on_the_name() -> None:
    algorithm = FeatARC(clusters=3)
    site = algorithm.init_site(
        dict.fromkeys(("model.0", "model.1", "model.2"), 0), {f"c{i}": i for i in range(7)}
    )
    assert [algorithm.broadcast(site, f"c{i}")["first"] for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    late = {name: algorithm.broadcast(site, name)["first"] for name in ("north", "south", "late")}
    assert late == {name: derive(name) % 3 for name in late}
    assert len({*late.values()}) > 1


def test_a_late_client_has_the_cluster_it_was_enrolled_in() -> None:
    federation = Federation(FeatARC(clusters=3), {"A": 0, "B": 1, "C": 2})
    federation.round("A", "B")
    assert federation.algorithm.broadcast(federation.site, "C")["first"] == 2 != derive("C") % 3


def test_a_message_is_the_same_size_however_many_clients_there_are() -> None:
    algorithm = FeatARC()
    site = algorithm.init_site({"model.0": 0, "model.1": 0}, {str(i): i for i in range(100)})
    assert algorithm.broadcast(site, "7").keys() == {"first", "model.0", "model.1"}


@pytest.mark.parametrize("cluster", [-1, 2, 10**9, True, 1.0, "0"])
def test_an_upload_for_an_unknown_cluster_is_dropped(cluster: Any) -> None:
    federation = Federation(FeatARC())
    federation.round("A", "B")
    guard = Guard(
        federation.algorithm.upload_schema(federation.method), 0, ["A"], {"A": federation.site}
    )
    list(guard([Reply("A", 1, {**federation.uploads["A"], "cluster": cluster}, None)]))
    reason = "is not one of 0 … 1" if type(cluster) is int else "is not int"
    assert guard.reports[0].dropped == f"cluster: {reason}"


# -- on real methods --


def _labels(n: int) -> Tensor:
    """Return labels of n images, for a method that learns from them."""
    return torch.arange(n) % 5


def _federated(
    algorithm: Algorithm,
    trainer: Trainer,
    shards: Mapping[str, Tensor],
    **options: Any,
) -> list[Round]:
    """Return the rounds of clients with labelled images."""
    labelled = {
        client: Shard(images, partial(_labels, len(images))) for client, images in shards.items()
    }
    return train_rounds(algorithm, labelled, trainer, **options)


@pytest.mark.parametrize("name", ["simclr", "byol"])
def test_one_cluster_without_alignment_is_fedavg(name: str) -> None:
    """The bits are those of FedAvg with equal weights of clients."""
    shards = {"a": random_pixels(16, 0), "b": random_pixels(24, 1), "c": random_pixels(9, 2)}
    ours, theirs = (
        _federated(algorithm, make_trainer(name), shards)
        for algorithm in (FeatARC(clusters=1, lam=0), FedAvg(weights="uniform"))
    )
    assert torch.equal(
        model(ours[-1].sites[SERVER], "model.0").floats,
        model(theirs[-1].sites[SERVER], "model").floats,
    )
    assert [r.metrics and r.metrics.loss for r in ours[-1].reports] == [
        r.metrics and r.metrics.loss for r in theirs[-1].reports
    ]


@pytest.mark.parametrize("name", METHODS.names())
def test_with_every_method(name: str) -> None:
    """Two rounds without a dropped client; the alignment changes the loss by at most a cosine."""
    shards = {"a": random_pixels(16, 0), "b": random_pixels(24, 1)}
    aligned, free = (
        _federated(FeatARC(lam=lam), make_trainer(name), shards, lr=0.01) for lam in (1.0, 0.0)
    )
    for done in (aligned, free):
        assert [r.dropped for finished in done for r in finished.reports] == [None] * 4
        assert {r.notes["cluster"] for r in done[0].reports} == {0, 1}
    assert not torch.equal(
        *(model(done[-1].sites[SERVER], "model.0").floats for done in (aligned, free))
    )
    losses = [done[0].reports[0].metrics.loss for done in (aligned, free)]  # type: ignore[union-attr]
    assert -1 < losses[0] - losses[1] < 1
    assert losses[0] != losses[1]


@pytest.mark.parametrize("name", ["simclr", "simsiam"])
def test_alignment_keeps_a_client_near_its_cluster(name: str) -> None:
    """After a round, a stronger term leaves predictions of clean images nearer to the cluster
    model's projections.
    """
    distances = []
    for lam in (0.0, 1.0, 10.0):
        trainer = make_trainer(name, {"epochs": 8})
        first = trainer.method.state.pick(trainer.method.online)
        client = make_client(trainer, random_pixels(32), lr=0.005)
        z_g = client.embed(first, "z")
        upload, _ = FeatARC(lam=lam).client_update(
            client, {"first": 0, "model.0": first, "model.1": first}
        )
        distances.append(distance(client.embed(model(upload, "model"), "p"), z_g).item())
    assert distances[0] > distances[1] + 0.01 > distances[2] + 0.02, distances


def test_clusters_may_start_from_independent_weights() -> None:
    """Each matrix and convolution has the same numbers in another order; the rest is the same; the
    seed decides.
    """
    trainer = make_trainer("byol")
    first = trainer.method.state.pick(trainer.method.online)

    def init(seed: int = 0) -> Tree:
        return first_site(FeatARC(start="independent", clusters=3), trainer, seed=seed)

    site = init()
    for j in range(3):
        state = model(site, f"model.{j}")
        assert torch.equal(state.floats, model(init(), f"model.{j}").floats)
        assert not torch.equal(state.floats, model(init(1), f"model.{j}").floats)
        for entry in first.layout.entries:
            mine = state.view(entry).flatten()
            origin = first.view(entry).flatten()
            assert torch.equal(mine.sort().values, origin.sort().values)
            assert torch.equal(mine, origin) == (
                len(entry.shape) not in (2, 4) or entry.role != "weight"
            ), entry
    assert not torch.equal(model(site, "model.0").floats, model(site, "model.1").floats)
    assert torch.equal(trainer.method.state.pick(trainer.method.online).floats, first.floats)


def test_weights_from_a_file_are_not_shuffled() -> None:
    trainer = make_trainer("simclr", init=Path("backbone.safetensors"))
    home = make_client(trainer, torch.empty(0), id="home")
    with raises(ConfigError):
        FeatARC(start="independent").init(home)
    assert FeatARC().init(home).keys() == {"model.0", "model.1"}


# -- planted clusters --


class Stripes(CNN):
    widths = (8, 16)


def stripes(n: int, seed: int) -> Tensor:
    """Return images (n, 3, 8, 8) of vertical stripes of any width, position and colour, with
    noise.
    """
    stream = torch.Generator().manual_seed(seed)
    width, place, colour = (
        torch.rand(n, *shape, generator=stream) for shape in ((1, 1, 1), (1, 1, 1), (3, 1, 1))
    )
    wave = torch.sin(2 * torch.pi * ((0.15 + 0.25 * width) * torch.arange(8.0) + place)).expand(
        n, 3, 8, 8
    )
    noise = torch.randn(n, 3, 8, 8, generator=stream)
    return (127.5 + 50 * (1 + colour) * wave + 10 * noise).clamp(0, 255).to(torch.uint8)


def clusters_by_round(
    planted: str, seed: int, method: str = "simsiam", lr: float = 0.001
) -> list[str]:
    """Return the clusters of six clients by round; those with a 1 have stripes rotated by 90°."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        settings = METHODS[method].Settings(hidden=32, dim=16, augment={"crop": (0.5, 1.0)})  # type: ignore[call-arg]
        trainer = Trainer(settings.build(Stripes(), 8), TrainSettings(batch=32, epochs=2))
    turned = {
        f"{i}": torch.rot90(stripes(128, 100 * seed + i), int(k), (2, 3))
        for i, k in enumerate(planted)
    }
    done = _federated(FeatARC(), trainer, turned, rounds=3, lr=lr, seed=seed)
    return [
        "".join(f"{report.notes['cluster']:.0f}" for report in finished.reports)
        for finished in done
    ]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("planted", ["000111", "011001"])
def test_planted_clusters_are_found(planted: str, seed: int) -> None:
    """Clients start in clusters 010101 by number, so that a third of them is in the wrong one.

    After three rounds all are in the right one.

    Of 20 seeds, all succeed with both parameters here, 17 with BYOL and 3 with SimCLR. With ten
    times the learning rate 3 of 10 seeds succeed, with fifty times none: the clusters then diverge
    in the first rounds, faster than clients can switch.
    """
    clusters = clusters_by_round(planted, seed)
    assert clusters[0] == "010101"
    assert clusters[-1] == planted


def test_an_upload_is_freed_before_the_next_one_arrives() -> None:
    class Sent(dict[str, Value]):
        """An upload that supports weak references."""

    federation = Federation(FeatARC())
    federation.round("A", "B")
    alive: list[weakref.ref[Sent]] = []

    def uploads() -> Iterator[Upload]:
        for client, tree in federation.uploads.items():
            assert [upload() for upload in alive] == [None] * len(alive)
            sent = Sent(tree)
            alive.append(weakref.ref(sent))
            yield Upload(client, 1.0, sent)
            del sent

    federation.algorithm.merge(federation.site, uploads(), Mean)
    assert len(alive) == 2
