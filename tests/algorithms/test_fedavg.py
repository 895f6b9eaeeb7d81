"""FedAvg's switches on a method of three numbers, all worked out by hand.

The method and what training adds are toy.py's.

Round 1: all clients start with online 10, target 10, predictor 1.
    A ends with 14, 12, 2; B ends with 18, 16, 4.
    by size:   online (14 + 3·18)/4 = 17, target (12 + 3·16)/4 = 15, predictor (2 + 3·4)/4 = 3.5
    uniform:   online (14 + 18)/2 = 16, target (12 + 16)/2 = 14, predictor (2 + 4)/2 = 3
The server's encoder G is the online mean (aggregate = online, both) or the target mean T (aggregate
= target); with both it holds T and G.

Round 2: what A starts from (B alike, with 18, 16, 4)
    update = online: online G, target its own 12
    update = target: online its own 14, target G (aggregate = both: T)
    update = both:   online G, target G (aggregate = both: T)
    predictor = global: the mean; local: its own 2
A newcomer C has no memory: online G, target G (both: T), and the mean predictor, or, where
predictors stay local, the very first, 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from factories import first_site, make_client, make_trainer, random_pixels
from torch import Tensor
from toy import ADDED, Federation, Numbers

from fedssl.algorithms import FedAvg
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.method import Batch, Constants, Method, Output
from fedssl.training.client import Client


def every(test: Callable[..., None]) -> Callable[..., None]:
    for key, values in {
        "weights": ["size", "uniform"],
        "predictor": ["global", "local"],
        "update": ["online", "target", "both"],
        "aggregate": ["online", "target", "both"],
    }.items():
        test = pytest.mark.parametrize(key, values)(test)
    return test


@every
def test_two_rounds_by_hand(aggregate: str, update: str, predictor: str, weights: str) -> None:
    federation = Federation(
        FedAvg(aggregate=aggregate, update=update, predictor=predictor, weights=weights)
    )
    assert federation.round("A", "B") == {"A": Numbers(10, 10, 1), "B": Numbers(10, 10, 1)}

    online, target, q = (17, 15, 3.5) if weights == "size" else (16, 14, 3)
    G = target if aggregate == "target" else online
    T = target if aggregate == "both" else G  # the client's target after the update
    expected = {"encoder": G, "predictor": q if predictor == "global" else 1}
    assert federation.held() == (expected | {"target": target} if aggregate == "both" else expected)
    exported = federation.algorithm.export(federation.site)
    assert exported.keys() == {"global"}
    assert exported["global"].tensors()["backbone.w"] == G

    newcomer = federation.start_of("C")
    assert newcomer == Numbers(G, T, q if predictor == "global" else 1)

    own = {"A": Numbers(14, 12, 2), "B": Numbers(18, 16, 4)}
    starts = {
        c: Numbers(
            mine.online if update == "target" else G,
            mine.target if update == "online" else T,
            mine.predictor if predictor == "local" else q,
        )
        for c, mine in own.items()
    }
    assert federation.round("A", "B") == starts

    ends = {c: Numbers(*(x + y for x, y in zip(starts[c], ADDED[c], strict=True))) for c in starts}
    share = (0.25, 0.75) if weights == "size" else (0.5, 0.5)
    mean = Numbers(
        *(share[0] * a + share[1] * b for a, b in zip(ends["A"], ends["B"], strict=True))
    )
    held = federation.held()
    assert held["encoder"] == (mean.target if aggregate == "target" else mean.online)
    assert held["predictor"] == (mean.predictor if predictor == "global" else 1)
    assert held.get("target") == (mean.target if aggregate == "both" else None)


def test_statistics_are_averaged_and_counters_keep_the_largest() -> None:
    """Running mean 0: A ends with 1, B with 5: (1 + 3·5)/4 = 4. Counters 1 and 2: 2."""
    federation = Federation(FedAvg())
    federation.round("A", "B")
    t = model(federation.site, "model").tensors()
    assert t["backbone.norm.running_mean"] == 4
    assert t["backbone.norm.num_batches_tracked"] == 2
    federation.round("A")
    t = model(federation.site, "model").tensors()
    assert t["backbone.norm.running_mean"] == 5
    assert t["backbone.norm.num_batches_tracked"] == 3


def test_an_aggregated_target_brings_its_norm_layers() -> None:
    """A's training moves the online network's running mean to 1 and its counter to 1, and leaves
    the target's at 0.
    """
    for aggregate, expected in (("online", 1), ("target", 0)):
        federation = Federation(FedAvg(aggregate=aggregate))
        federation.round("A")
        sent = model(federation.uploads["A"], "model").tensors()
        assert (
            sent["backbone.norm.running_mean"]
            == sent["backbone.norm.num_batches_tracked"]
            == expected
        )


@pytest.mark.parametrize("predictor", ["global", "local"])
def test_uploads_and_memories_have_the_required_parts_only(predictor: str) -> None:
    parts = {"backbone", "projector"} | ({"predictor"} if predictor == "global" else set())
    local = set() if predictor == "global" else {"predictor"}
    kept = {"online": {"target"}, "target": {"backbone", "projector"}, "both": set()}
    for update, expected in kept.items():
        federation = Federation(FedAvg(update=update, predictor=predictor))
        federation.round("A", "B")
        assert set(model(federation.uploads["A"], "model").layout.parts) == parts
        memory = federation.memory["A"]
        assert (set(model(memory, "kept").layout.parts) if memory else set()) == expected | local


def test_a_client_that_skips_a_round_continues_from_its_memory() -> None:
    federation = Federation(FedAvg(predictor="local"))
    federation.round("A", "B")
    federation.round("B")
    G = federation.held()["encoder"]
    assert federation.round("A", "B")["A"] == Numbers(G, 12, 2)


def test_sites_messages_and_uploads_are_never_changed_in_place() -> None:
    federation = Federation(FedAvg(aggregate="both", predictor="local"))
    first = federation.site
    before = {key: model(first, key).clone() for key in first}
    federation.round("A", "B")
    uploads = {c: model(u, "model").clone() for c, u in federation.uploads.items()}
    kept = federation.uploads
    federation.round("A", "B")
    assert all(torch.equal(model(first, key).floats, state.floats) for key, state in before.items())
    assert all(
        torch.equal(model(kept[c], "model").floats, state.floats) for c, state in uploads.items()
    )


def test_required_parts() -> None:
    assert FedAvg().requires == frozenset()
    for settings in (
        {"aggregate": "both"},
        {"aggregate": "target"},
        {"update": "target"},
        {"update": "both"},
    ):
        assert FedAvg(**settings).requires == {"target"}


# -- on a real method --


@pytest.mark.parametrize(
    ("name", "settings", "kept"),
    [
        ("simclr", {}, ()),
        ("byol", {}, ("target",)),
        ("mocov2", {}, ("target", "queue")),
        ("mocov2", {"key": "reset"}, ("queue",)),
    ],
)
def test_a_real_client_keeps_the_parts_that_its_method_declares(
    name: str, settings: dict[str, Any], kept: tuple[str, ...]
) -> None:
    """In the next round the kept parts continue from the memory, the others from the global
    model.
    """
    algorithm = FedAvg()
    trainer = make_trainer(name, **settings)
    method = trainer.method
    site = first_site(algorithm, trainer)
    first = make_client(trainer, random_pixels(16), lr=0.1)
    upload, memory = algorithm.client_update(first, algorithm.broadcast(site, "a"))
    assert (model(memory, "kept").layout.parts if memory else ()) == kept
    assert model(upload, "model").layout == algorithm.upload_schema(method)["model"]

    started: list[State] = []

    class Recording(FedAvg):
        def objective(
            self, method: Method, batch: Batch, out: Output, constants: Constants
        ) -> Tensor:
            if not started:
                started.append(method.state.pick(roles=("weight", "buffer")))
            return super().objective(method, batch, out, constants)

    second = make_client(trainer, random_pixels(16), memory=memory, round=1, lr=0.1)
    Recording().client_update(second, algorithm.broadcast(site, "a"))
    now = started[0]
    for part in now.layout.parts:
        mine = now.pick((part,))
        if part in kept:
            expected = model(memory, "kept").pick((part,), ("weight", "buffer"))
        elif part == "target":
            expected = model(site, "model").pick(method.mirrored, ("weight",)).with_prefix("target")
        else:
            expected = model(site, "model").pick((part,), ("weight",))
        assert torch.equal(mine.floats, expected.floats), part


class Anchored(FedAvg):
    """FedAvg whose loss is the round plus the squared norm of the model that was sent."""

    def constants(self, client: Client, message: Tree) -> Constants:
        return {"round": torch.tensor(float(client.round)), **model(message, "model").tensors()}

    def objective(self, method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        sent = sum(
            constants[name].square().sum()
            for name, _ in method.named_parameters()
            if name in constants
        )
        return 0 * method.loss(out, constants) + constants["round"] + sent  # type: ignore[no-any-return]


def test_the_objective_gets_new_constants_each_round() -> None:
    algorithm = Anchored()
    trainer = make_trainer("simclr")
    site = first_site(algorithm, trainer)
    sent = model(site, "model")
    expected = sum(
        float(sent.view(e).square().sum())
        for e in sent.layout.entries
        if e.role in ("weight", "norm")
    )
    for round in (0, 3):
        client = make_client(trainer, random_pixels(16), round=round, lr=0.1)
        algorithm.client_update(client, algorithm.broadcast(site, "a"))
        assert client.metrics[0].loss == pytest.approx(expected + round, rel=1e-5)


def test_there_are_no_constants_by_default() -> None:
    client = make_client(make_trainer("simclr"), random_pixels(8))
    assert FedAvg().constants(client, {}) == {}


@pytest.mark.parametrize(("name", "fresh"), [("simclr", 0), ("byol", 1), ("mocov2", 1)])
def test_parts_that_the_memory_replaces_are_not_initialised(
    name: str, fresh: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client initialises local parts only if its memory lacks them: once in three rounds, or
    never if the method has none.
    """
    algorithm = FedAvg()
    trainer = make_trainer(name)
    memory = {}
    calls: list[torch.Generator] = []
    start = trainer.method.init_local_parts
    monkeypatch.setattr(
        trainer.method, "init_local_parts", lambda stream: (calls.append(stream), start(stream))
    )
    site = first_site(algorithm, trainer)
    for round in range(3):
        _, memory = algorithm.client_update(
            make_client(trainer, random_pixels(16), memory=memory, round=round, lr=0.1), site
        )
    assert len(calls) == fresh
