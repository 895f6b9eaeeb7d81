"""FedBN by hand, on toy.py's numbers: its backbone has a norm layer, of which training moves
statistic and counter.

Round 1: both start with w = 10, statistic 0, counter 0. A ends with 14, 1, 1 and B with 18, 5, 2.
    The server's w is (14 + 3·18)/4 = 17; it receives nothing of the layer and keeps the first, 0
    and 0.
Round 2: A starts with 17, 1, 1 and ends with 21, 2, 2; B starts with 17, 5, 2 and ends with 25, 10,
    4. The server's w is (21 + 3·25)/4 = 24.
A's own model is then 24 with 2, 2, and B's 24 with 10, 4.
With eval_norm = "mean" none of that changes; in addition the layers are averaged, statistics to (1
+ 3·5)/4 = 4 and then (2 + 3·10)/4 = 8, counters to the larger: 2 and then 4.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from factories import first_site, make_client, make_trainer, random_pixels, train_rounds
from torch import Tensor, nn
from toy import Federation, Numbers, starts_of_training

from fedssl.algorithm import Algorithm
from fedssl.algorithms import FedAvg, FedBN
from fedssl.algorithms.fedbn import split
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.engine.checkpoints.client_memory import ClientMemory
from fedssl.method import METHODS
from fedssl.topologies.topology import SERVER
from fedssl.training.trainer import Trainer, TrainSettings


class Layer(NamedTuple):
    w: float
    statistic: float
    counter: int


def layer(state: State | None) -> Layer:
    assert state is not None
    t = state.tensors()
    return Layer(
        t["backbone.w"].item(),
        t["backbone.norm.running_mean"].item(),
        t["backbone.norm.num_batches_tracked"].item(),
    )


@pytest.mark.parametrize("eval_norm", ["none", "mean", "mean-only"])
def test_two_rounds_by_hand(eval_norm: str) -> None:
    federation = Federation(FedBN(eval_norm=eval_norm))
    assert federation.personal("A") is None
    assert federation.round("A", "B") == {"A": Numbers(10, 10, 1), "B": Numbers(10, 10, 1)}
    assert layer(model(federation.site, "model")) == Layer(17, 0, 0)
    assert {c: layer(federation.personal(c)) for c in "AB"} == {
        "A": Layer(17, 1, 1),
        "B": Layer(17, 5, 2),
    }
    assert federation.round("A", "B") == {"A": Numbers(17, 12, 3.5), "B": Numbers(17, 16, 3.5)}
    assert layer(model(federation.site, "model")) == Layer(24, 0, 0)
    assert {c: layer(federation.personal(c)) for c in "AB"} == {
        "A": Layer(24, 2, 2),
        "B": Layer(24, 10, 4),
    }
    assert federation.personal("C") is None


def test_the_mean_of_layers_is_only_for_evaluation() -> None:
    """A client receives the first layer, not the mean; the log records that layers were sent."""
    federation = Federation(FedBN(eval_norm="mean"))
    for expected in (Layer(17, 4, 2), Layer(24, 8, 4)):
        federation.round("A", "B")
        assert {
            name: layer(state)
            for name, state in federation.algorithm.export(federation.site).items()
        } == {"global": expected}
        assert federation.notes == {"A": {"norms_sent": 1.0}, "B": {"norms_sent": 1.0}}
        assert federation.algorithm.broadcast(federation.site, "A").keys() == {"model"}


def test_layers_never_leave_and_there_is_no_global_model() -> None:
    federation = Federation(FedBN())
    federation.round("A", "B")
    assert federation.algorithm.export(federation.site) == {}
    assert federation.notes == {"A": {}, "B": {}}
    for upload in federation.uploads.values():
        assert upload.keys() == {"model"}
        assert {e.name for e in model(upload, "model").layout.entries} == {
            "backbone.w",
            "projector.w",
            "predictor.w",
        }
    norms = model(federation.memory["A"], "norms").layout
    assert {e.name.removeprefix("backbone.norm.") for e in norms.entries} == {
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }


def test_a_client_that_skips_a_round_keeps_its_layers() -> None:
    federation = Federation(FedBN())
    federation.round("A", "B")
    federation.round("B")
    assert layer(federation.personal("A")) == Layer(25, 1, 1)


def test_counters_of_norm_layers_are_distinguished_from_others() -> None:
    entries = [
        Entry("backbone.conv.weight", (2, 2), "weight"),
        Entry("backbone.norm.weight", (2,), "norm"),
        Entry("backbone.norm.running_mean", (2,), "statistic"),
        Entry("backbone.norm.num_batches_tracked", (), "counter"),
        Entry("backbone.plain.running_var", (2,), "statistic"),
        Entry("backbone.plain.num_batches_tracked", (), "counter"),
        Entry("backbone.places", (3,), "counter"),
        Entry("backbone.scale", (1,), "buffer"),
    ]
    norms, rest = split(Layout.of(entries))
    assert [e.name for e in rest.entries] == [
        "backbone.conv.weight",
        "backbone.scale",
        "backbone.places",
    ]
    assert len(norms.entries) == 5


# -- on real methods --


@pytest.mark.parametrize(
    ("name", "settings"),
    [("simclr", {}), ("byol", {}), ("mocov2", {}), ("mocov2", {"key": "reset"}), ("mae", {})],
)
def test_the_model_that_a_client_starts_its_second_round_from(name: str, settings: Any) -> None:
    """A client starts its second round with the weights sent, and with its own norm layers, target
    and queue. A target that is initialised again equals the online network, with the client's
    layers.
    """
    algorithm = FedBN()
    trainer = make_trainer(name, **settings)
    method = trainer.method
    site = first_site(algorithm, trainer)
    first = make_client(trainer, random_pixels(16), lr=0.1)
    _, memory = algorithm.client_update(first, algorithm.broadcast(site, "a"))

    second = make_client(trainer, random_pixels(16), memory=memory, round=1, lr=0.1)
    message = algorithm.broadcast(site, "a")
    (now,) = starts_of_training(trainer, lambda: algorithm.client_update(second, message))
    norms, rest = split(method.state.layout.pick(method.online))
    assert norms.floats > 0
    assert torch.equal(now.restricted(norms).floats, model(memory, "norms").floats)
    assert not torch.equal(
        now.restricted(norms).floats, model(site, "model").restricted(norms).floats
    )
    assert torch.equal(now.restricted(rest).floats, model(site, "model").restricted(rest).floats)
    if method.persistent_parts:
        assert torch.equal(now.pick(method.persistent_parts).floats, model(memory, "kept").floats)
    if "target" in method.provides and "target" not in method.persistent_parts:
        assert torch.equal(now.pick(("target",)).floats, now.pick(method.mirrored).floats)


class Bare(nn.Module):
    """A backbone without norm layers."""

    dim = 12

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(self.layer(images).relu(), 2).flatten(1)


def _federated(algorithm: Algorithm, name: str, **settings: Any) -> tuple[Tree, ClientMemory]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        method = METHODS[name].Settings(**settings).build(Bare(), 8)
    trainer = Trainer(method, TrainSettings(batch=8))
    memory = ClientMemory()
    shards = {"a": random_pixels(16, 0), "b": random_pixels(24, 1)}
    *_, last = train_rounds(algorithm, shards, trainer, memory=memory)
    return last.sites[SERVER], memory


@pytest.mark.parametrize("eval_norm", ["none", "mean", "mean-only"])
def test_without_norm_layers_it_is_fedavg(eval_norm: str) -> None:
    """To the bit, with a global model and without personal models."""
    settings = {"dim": 4, "queue": 8}
    algorithm = FedBN(eval_norm=eval_norm)
    ours, memory = _federated(algorithm, "mocov1", **settings)
    theirs, expected = _federated(FedAvg(), "mocov1", **settings)
    assert ours.keys() == theirs.keys() == {"model"}
    assert torch.equal(model(ours, "model").floats, model(theirs, "model").floats)
    for client in "ab":
        assert torch.equal(*(model(m.latest(client), "kept").floats for m in (memory, expected)))
        assert algorithm.personal(algorithm.broadcast(ours, client), memory.latest(client)) is None
    assert algorithm.export(ours).keys() == {"global"}


def test_a_layer_depends_on_its_clients_images_only() -> None:
    """At a learning rate of 0, weights do not change. After three rounds a client's running
    statistics then depend only on its own images, not on those of other clients.
    """

    def norms(sizes: dict[str, int]) -> Tensor:
        memory = ClientMemory()
        shards = {c: random_pixels(n, ord(c)) for c, n in sizes.items()}
        train_rounds(FedBN(), shards, make_trainer("simclr"), rounds=3, lr=0.0, memory=memory)
        return model(memory.latest("a"), "norms").pick(roles=("statistic",)).floats

    assert torch.equal(norms({"a": 16, "b": 40}), norms({"a": 16}))
    assert not torch.equal(norms({"a": 16, "b": 40}), norms({"a": 24, "b": 40}))


def test_nothing_sent_is_changed() -> None:
    algorithm = FedBN(eval_norm="mean")
    trainer = make_trainer("byol")
    site = first_site(algorithm, trainer)
    before = {key: model(site, key).clone() for key in site}
    _, memory = algorithm.client_update(make_client(trainer, random_pixels(16), lr=0.1), site)
    kept = {key: model(memory, key).clone() for key in memory}
    algorithm.client_update(
        make_client(trainer, random_pixels(16), memory=memory, round=1, lr=0.1), site
    )
    for tree, copies in ((site, before), (memory, kept)):
        assert all(
            torch.equal(model(tree, key).floats, copy.floats) for key, copy in copies.items()
        )
