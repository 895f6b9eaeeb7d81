"""FeatARC's Algorithm 2: the alignment term against a loop over images, and the state that it must
not change.
"""

from __future__ import annotations

import math

import pytest
import torch
from error_messages import raises
from factories import make_client, make_trainer, random_pixels
from torch import Tensor

from fedssl.algorithms._feature_alignment import (
    KEY,
    align_to_features,
    alignment,
    anchors,
    distance,
)
from fedssl.core.errors import ConfigError
from fedssl.core.state.state import State
from fedssl.method import METHODS, Batch, Method, Output
from fedssl.nets import mlp
from fedssl.training.client import Client
from fedssl.training.trainer import Trainer, TrainingTask


def _batch(trainer: Trainer, images: Tensor, index: list[int]) -> Batch:
    """Return the rows in `index` of a client's images as a batch of a step."""
    rows = torch.tensor(index)
    stream = torch.Generator().manual_seed(2)
    labels = torch.arange(len(images)) % 5 if trainer.method.learns_from_labels else None
    task = TrainingTask(images, labels, stream, 0.0, 0.0, None)  # type: ignore[arg-type]
    return trainer.step.batch(trainer._inputs(task, rows, images[rows]))


def _step(trainer: Trainer) -> tuple[Method, Client, State, Batch, Output]:
    """Return a step of a client with 11 images: method, client, cluster model, batch, output."""
    images = random_pixels(11)
    method = trainer.method.train()
    cluster = method.state.pick(method.online)
    cluster.floats.mul_(0.7)
    batch = _batch(trainer, images, [7, 0, 9, 3])
    return method, make_client(trainer, images), cluster, batch, method(batch)


def _cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def slow_alignment(method: Method, batch: Batch, augmented: Tensor, z_g: Tensor) -> float:
    """Return ½D(p⁺, z_g) + ½D(p, z_g), image by image and view by view; z_g (n, k) is of all
    images.
    """
    clean = method.encode(method.clean(batch.images), tracked=False).p
    total = 0.0
    for i, row in enumerate(batch.index.tolist()):
        views = [_cosine(view[i].tolist(), z_g[row].tolist()) for view in augmented]
        total -= 0.5 * sum(views) / len(views) + 0.5 * _cosine(clean[i].tolist(), z_g[row].tolist())
    return total / len(batch.index)


@pytest.mark.parametrize("name", METHODS.names())
def test_against_a_loop(name: str) -> None:
    """With every method: without a predictor, projections are aligned; without a projector,
    features.
    """
    method, client, cluster, batch, out = _step(make_trainer(name))
    z_g = client.embed(cluster, "z")
    computed = alignment(method, batch, out, anchors(client, cluster))
    augmented = out.p if name in ("byol", "simsiam") else out.z
    expected = slow_alignment(method, batch, augmented, z_g)
    assert computed.shape == ()
    assert computed.item() == pytest.approx(expected, abs=1e-5)
    assert computed.requires_grad


def test_constants_are_padded_to_a_power_of_two() -> None:
    """Padding allows a step captured for one client to be used for others of a similar size."""
    trainer = make_trainer("byol")
    shapes = {}
    for n in (2, 3, 4, 5, 8, 9, 16):
        client = make_client(trainer, random_pixels(n))
        constants = anchors(client, trainer.method.state)[KEY]
        shapes[n] = len(constants)
        assert torch.equal(constants[:n], client.embed(trainer.method.state, "z"))
        assert not constants[n:].any()
    assert shapes == {2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 16, 16: 16}


def test_the_clean_pass_moves_no_statistics_and_no_counter() -> None:
    trainer = make_trainer("byol")
    images = random_pixels(8)
    method = trainer.method.train()
    batch = _batch(trainer, images, [1, 2, 3])
    constants = anchors(make_client(trainer, images), method.state)
    out = method(batch)
    before = method.state.clone()
    passed = method.uncounted_batches
    alignment(method, batch, out, constants).backward()
    assert torch.equal(method.state.floats, before.floats)
    assert method.uncounted_batches == passed


def test_a_model_that_agrees_with_itself() -> None:
    """D is −1 for equal directions whatever the lengths, 0 for orthogonal and 1 for opposite ones;
    it is averaged over all rows.
    """
    a = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    assert distance(a, 5 * a) == pytest.approx(-1)
    assert distance(a, -a) == pytest.approx(1)
    assert distance(a, torch.tensor([[-4.0, 3.0], [1.0, 0.0]])) == pytest.approx(-0.5)
    assert distance(torch.stack([a, -a]), a) == pytest.approx(
        0
    )  # one view agrees, the other is opposite


def test_predictions_of_another_width_are_refused() -> None:
    trainer = make_trainer("byol")
    images = random_pixels(8)
    method = trainer.method.train()
    method.predictor = mlp(5, 6, 3)
    method.reside()
    batch = _batch(trainer, images, [0, 1, 2])
    constants = {KEY: torch.zeros(8, 5)}
    with raises(ConfigError):
        alignment(method, batch, method(batch), constants)


def test_projections_are_aligned_with_backbone_features_against_a_loop() -> None:
    """Heads are as wide as the backbone's features; the network does not encode clean images."""
    width = make_trainer("simclr").method.features
    _, client, cluster, batch, out = _step(make_trainer("simclr", dim=width))
    h_g = client.embed(cluster, "h")
    computed = align_to_features(out, batch, anchors(client, cluster, "h"))
    total = 0.0
    for i, row in enumerate(batch.index.tolist()):
        for view in out.z:
            total -= _cosine(view[i].tolist(), h_g[row].tolist()) / 2
    assert computed.item() == pytest.approx(total / len(batch.index), abs=1e-5)
    assert computed.requires_grad


def test_projections_of_another_width_than_features_are_refused() -> None:
    trainer = make_trainer("simclr")
    images = random_pixels(8)
    method = trainer.method.train()
    batch = _batch(trainer, images, [0, 1, 2])
    width = method.features + 1
    with raises(ConfigError):
        align_to_features(method(batch), batch, {KEY: torch.zeros(8, width)})
