"""A client's random streams, and embeddings without side effects."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from factories import make_client, make_trainer, random_pixels
from torch import Tensor

from fedssl.method import METHODS, Batch, Constants, Method, Output
from fedssl.training.client import Client
from fedssl.training.trainer import Trainer


def make(trainer: Trainer, images: Tensor, **changes: Any) -> Client:
    return make_client(trainer, images, **{"seed": 1, "round": 2, "lr": 0.05, **changes})


def test_streams_repeat_and_differ_by_seed_round_client_and_purpose() -> None:
    trainer = make_trainer("simclr")
    images = random_pixels(2)
    draws = {}
    for seed, round, client, purpose in itertools.product(
        (1, 2), (0, 1), ("a", "b"), ("train 0", "fresh")
    ):
        for _ in range(2):
            stream = make(trainer, images, id=client, seed=seed, round=round).generator(purpose)
            draws.setdefault((seed, round, client, purpose), []).append(
                torch.rand(4, generator=stream).tolist()
            )
    assert all(first == second for first, second in draws.values())
    assert len({tuple(first) for first, _ in draws.values()}) == len(draws) == 16


def _seen(client: Client, times: int = 1) -> list[list[int]]:
    seen: list[list[int]] = []

    def objective(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        seen.append(batch.index.tolist())
        return method.loss(out, constants)

    for _ in range(times):
        client.train(objective, {})
    return seen


def test_a_second_training_in_a_round_draws_other_batches() -> None:
    client = make(make_trainer("simclr", {"batch": 16}), random_pixels(16))
    first, second = _seen(client, 2)
    assert first != second
    assert [m.steps for m in client.metrics] == [1, 1]
    assert _seen(make(make_trainer("simclr", {"batch": 16}), random_pixels(16)), 2) == [
        first,
        second,
    ]


@pytest.mark.parametrize(
    "name", [name for name in METHODS.names() if not METHODS[name].learns_from_labels]
)
def test_labels_are_never_loaded(name: str) -> None:
    def labels() -> Tensor:
        raise AssertionError("labels were loaded")

    _seen(make(make_trainer(name), random_pixels(8), labels=labels))


def test_labels_for_a_method_that_declares_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer("simclr")
    found = []
    monkeypatch.setattr(type(trainer.method), "learns_from_labels", True)

    def objective(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        found.append(torch.equal(batch.labels, 10 * batch.index))  # type: ignore[arg-type]
        return method.loss(out, constants)

    make(trainer, random_pixels(16), labels=lambda: 10 * torch.arange(16)).train(objective, {})
    assert found == [True, True]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", METHODS.names())
def test_embed_does_not_change_the_method(name: str, training: bool) -> None:
    trainer = make_trainer(name)
    method = trainer.method
    client = make(trainer, random_pixels(21), labels=lambda: torch.arange(21) % 5)
    method.init_local_parts(client.generator("fresh"))
    client.train(lambda method, batch, out, constants: method.loss(out, constants), {})
    method.train(training)
    before = method.state.clone()
    other = method.state.clone()
    other.floats.mul_(1.5)
    features = client.embed(other)
    assert torch.equal(method.state.floats, before.floats)
    assert torch.equal(method.state.counts, before.counts)
    assert {module.training for module in method.modules()} == {training}
    assert not features.requires_grad
    # They are those of the other state, in eval mode.
    method.state.load(other)
    method.eval()
    with torch.no_grad():
        expected = method.encode(client.pixels.float() / 255)
    torch.testing.assert_close(features, expected.h)
    torch.testing.assert_close(client.embed(other, "z"), expected.z)
    torch.testing.assert_close(client.embed(other, "p"), expected.p)


def test_embed_of_some_parts_uses_the_resident_others() -> None:
    trainer = make_trainer("byol")
    client = make(trainer, random_pixels(5))
    state = trainer.method.state
    before = state.clone()
    other = state.pick(("backbone",))
    other.floats.mul_(2)
    assert not torch.equal(client.embed(other), client.embed(state))
    assert torch.equal(state.floats, before.floats)


def test_a_failed_embed_does_not_change_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer("byol")
    method = trainer.method.train()
    before = method.state.clone()
    other = method.state.clone()
    other.floats.zero_()

    def fail(images: Tensor) -> Tensor:
        raise RuntimeError("no")

    monkeypatch.setattr(method, "clean", fail)
    with pytest.raises(RuntimeError, match="no"):
        make(trainer, random_pixels(3)).embed(other)
    assert torch.equal(method.state.floats, before.floats)
    assert method.training


def test_measuring_has_a_separate_stream() -> None:
    """Measuring does not change the batches of a later training, and measurements repeat."""

    def loss(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        return method.loss(out, constants)

    trainer = make_trainer("simclr")
    client = make(trainer, random_pixels(16), lr=0.0)
    assert client.measure({}, loss) == client.measure({}, loss)
    assert client.metrics == []
    assert _seen(client) == _seen(make(trainer, random_pixels(16), lr=0.0))
    assert client.measure({}, loss) != make(trainer, random_pixels(16), id="b").measure({}, loss)


def test_a_client_counts_its_images() -> None:
    assert make(make_trainer(), random_pixels(13)).count == 13
