"""Fine-tuning: the same steps as a plain loop, of the whole model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from factories import random_pixels
from torch import Tensor, nn

from fedssl.core.seeds import derive, generator
from fedssl.data.image_pool import PixelRows
from fedssl.method import Normalisation
from fedssl.nets import CNN
from fedssl.probes import LINEAR, Name, Protocol, fine_tune, fine_tuning
from fedssl.views import COLUMNS, Augment, ViewGroup, apply, parameters

NORMALISATION = Normalisation((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
SCALE = [torch.tensor(values)[:, None, None] for values in NORMALISATION]


def data(n: int = 11) -> tuple[Tensor, Tensor]:
    return random_pixels(n), torch.arange(n) % 3


def as_input(pixels: Tensor) -> Tensor:
    mean, std = SCALE
    return (pixels / 255 - mean) / std


def backbone() -> CNN:
    torch.manual_seed(5)
    return CNN()


def tuned(protocol: Protocol, seed: int = 0, n: int = 11, frozen: bool = False) -> nn.Module:
    pixels, labels = data(n)
    return fine_tune(
        backbone(),
        pixels,
        labels,
        3,
        normalisation=NORMALISATION,
        protocol=protocol,
        seed=seed,
        frozen=frozen,
    )


def two_layer_head() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 3))


def plain_optimizer(name: Name, model: nn.Sequential) -> torch.optim.Optimizer:
    if name == "fedema":
        return torch.optim.Adam(model.parameters(), 1e-3)
    groups = [
        {"params": model[0].parameters(), "lr": 0.01},
        {"params": model[1].parameters(), "lr": 0.2},
    ]
    return torch.optim.SGD(groups, momentum=0.9)


def assert_same_weights(model: nn.Module, expected: nn.Module) -> None:
    weights = expected.state_dict()
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, weights[key], rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize(("name", "share"), [("fedema", 0.01), ("ccl", 0.1)])
def test_the_same_steps_as_a_plain_loop(name: Name, share: float) -> None:
    """11 images in batches of 5: the last batch has one image, without statistics, and is skipped.

    SwAV's rates become a fifth after 3 and after 4 of 5 epochs.
    """
    protocol = fine_tuning(name, share)._replace(epochs=5, batch=5)
    model = tuned(protocol, seed=2)
    torch.manual_seed(derive(2, "fine-tuned head"))
    head = two_layer_head() if name == "fedema" else nn.Linear(512, 3)
    expected = nn.Sequential(backbone(), head).train()
    optimizer = plain_optimizer(name, expected)
    pixels, labels = data()
    stream = generator(2, "fine-tuning")
    for epoch in range(5):
        if name == "ccl":
            drop = 0.2 ** ((epoch >= 3) + (epoch >= 4))
            optimizer.param_groups[0]["lr"] = 0.01 * drop
            optimizer.param_groups[1]["lr"] = 0.2 * drop
        order = torch.randperm(11, generator=stream)
        for index in (order[:5], order[5:10]):
            optimizer.zero_grad()
            F.cross_entropy(expected(as_input(pixels[index])), labels[index]).backward()
            optimizer.step()
    assert_same_weights(model, expected)


def test_every_layer_of_the_backbone_moves() -> None:
    """Two public codes freeze it by mistake. Statistics of normalisation layers move too."""
    model = tuned(fine_tuning("fedema", 0.1)._replace(epochs=2))
    assert not model.training
    before = backbone().state_dict()
    assert isinstance(model, nn.Sequential)
    after = model[0].state_dict()
    assert after.keys() == before.keys()
    unchanged = {key for key in before if torch.equal(after[key], before[key])}
    # Only methods update these counters.
    assert unchanged == {key for key in before if key.endswith("num_batches_tracked")}
    assert any("running_mean" in key for key in before)


def test_frozen_the_head_alone_learns() -> None:
    """As a plain loop over features in eval mode; the backbone and its statistics do not change."""
    model = tuned(fine_tuning("fedema", 0.1)._replace(epochs=3, batch=5), 2, n=10, frozen=True)
    torch.manual_seed(derive(2, "fine-tuned head"))
    head = two_layer_head()
    pixels, labels = data(10)
    with torch.no_grad():
        features = backbone().eval()(as_input(pixels))
    optimizer = torch.optim.Adam(head.parameters(), 1e-3)
    stream = generator(2, "fine-tuning")
    for _ in range(3):
        for index in torch.randperm(10, generator=stream).split(5):
            optimizer.zero_grad()
            F.cross_entropy(head(features[index]), labels[index]).backward()
            optimizer.step()
    assert_same_weights(model, nn.Sequential(backbone(), head))
    for key, tensor in backbone().state_dict().items():
        assert torch.equal(model.state_dict()[f"0.{key}"], tensor)
    assert not model.training


def plain_head_only(seed: int, epochs: int, training_mode: int) -> nn.Sequential:
    """Train EasyFL's head by a plain loop; the first epochs are in training mode."""
    torch.manual_seed(derive(seed, "fine-tuned head"))
    hidden = (nn.Linear(512, 4096), nn.BatchNorm1d(4096), nn.ReLU(), nn.Linear(4096, 3))
    head = nn.Sequential(*hidden)
    model = nn.Sequential(backbone(), head)
    optimizer = torch.optim.Adam(head.parameters(), 1e-3)
    pixels, labels = data()
    stream = generator(seed, "fine-tuning")
    for epoch in range(epochs):
        model.train(epoch < training_mode)
        for index in torch.randperm(11, generator=stream).split(6):
            optimizer.zero_grad()
            F.cross_entropy(model(as_input(pixels[index])), labels[index]).backward()
            optimizer.step()
    return model


@pytest.mark.parametrize(("name", "training_mode"), [("easyfl", 3), ("easyfl-literal", 1)])
def test_easyfl_trains_the_head_on_a_backbone_whose_statistics_change(
    name: Name, training_mode: int
) -> None:
    """As a plain loop over all epochs, in which the optimizer holds the head only.

    Weights of the backbone do not change by a bit, but all of its running statistics do.
    """
    model = tuned(fine_tuning(name, 0.1)._replace(epochs=3, batch=6), seed=2)
    expected = plain_head_only(2, 3, training_mode).state_dict()
    for key, tensor in model.state_dict().items():
        if not key.endswith("num_batches_tracked"):  # only methods update these counters
            torch.testing.assert_close(tensor, expected[key], rtol=1e-4, atol=1e-5, msg=key)
    changed = set()
    for key, tensor in backbone().state_dict().items():
        if not torch.equal(model.state_dict()[f"0.{key}"], tensor):
            changed.add(key)
    assert changed == {key for key in backbone().state_dict() if "running" in key}
    assert changed
    assert not model.training


def test_easyfl_in_training_mode_differs_from_its_literal_form() -> None:
    """Running statistics follow the images in all epochs, or only in the first."""
    always, once = (
        tuned(fine_tuning(name, 0.1)._replace(epochs=3, batch=6))
        for name in ("easyfl", "easyfl-literal")
    )
    longer = tuned(fine_tuning("easyfl-literal", 0.1)._replace(epochs=5, batch=6))
    key = "0.layers.0.1.running_mean"
    assert not torch.equal(always.state_dict()[key], once.state_dict()[key])
    assert torch.equal(longer.state_dict()[key], once.state_dict()[key])


def test_frozen_features_under_the_head_of_easyfl() -> None:
    """The settings compose: nothing in the backbone changes, and the head is EasyFL's."""
    model = tuned(fine_tuning("easyfl", 0.1)._replace(epochs=2), frozen=True)
    for key, tensor in backbone().state_dict().items():
        assert torch.equal(model.state_dict()[f"0.{key}"], tensor)
    assert model.state_dict()["1.0.weight"].shape == (4096, 512)


VIEWS = ViewGroup(2, 8, Augment(crop=(0.3, 1.0), jitter=(0.4, 0.4, 0.4, 0.1)))


def plain_dec_ssl(seed: int, epochs: int, penalty: float) -> nn.Sequential:
    """Train Dec-SSL's classifier by a plain loop: views, and one epoch in training mode."""
    torch.manual_seed(derive(seed, "fine-tuned head"))
    head = nn.Linear(512, 3)
    model = nn.Sequential(backbone(), head)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3, weight_decay=1e-6)
    pixels, labels = data()
    order_stream = generator(seed, "fine-tuning")
    view_stream = generator(seed, "views of a probe")
    mean, std = SCALE
    for epoch in range(epochs):
        if epoch == 0:
            model.train()
        for index in torch.randperm(11, generator=order_stream).split(4):
            uniforms = torch.rand(len(index), COLUMNS, generator=view_stream)
            drawn = parameters(VIEWS.augment, uniforms, height=8, width=8)
            views = (apply(pixels[index], drawn, VIEWS.augment, size=8) - mean) / std
            loss = F.cross_entropy(model(views), labels[index])
            loss = loss + penalty / 2 * head.weight.square().sum()
            optimizer.zero_grad()
            for weight, grad in zip(
                head.parameters(), torch.autograd.grad(loss, list(head.parameters())), strict=True
            ):
                weight.grad = grad
            optimizer.step()
        model.eval()  # the test after every epoch selects it, and no line selects training again
    return model


def on_views(seed: int = 2, epochs: int = 3, penalty: float = 0.0, **changes: Any) -> nn.Module:
    pixels, labels = data()
    return fine_tune(
        backbone(),
        PixelRows(pixels),
        labels,
        3,
        normalisation=NORMALISATION,
        protocol=LINEAR["dec-ssl"]._replace(epochs=epochs, batch=4, **changes),
        seed=seed,
        views=VIEWS,
        penalty=penalty,
    )


@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_dec_ssl_learns_from_views_with_statistics_of_its_first_epoch(penalty: float) -> None:
    """As a plain loop: the backbone's weights do not change by a bit, its statistics do."""
    model = on_views(penalty=penalty)
    expected = plain_dec_ssl(2, 3, penalty).state_dict()
    for key, tensor in model.state_dict().items():
        if not key.endswith("num_batches_tracked"):  # only methods update these counters
            torch.testing.assert_close(tensor, expected[key], rtol=1e-4, atol=1e-5, msg=key)
    changed = set()
    for key, tensor in backbone().state_dict().items():
        if not torch.equal(model.state_dict()[f"0.{key}"], tensor):
            changed.add(key)
    assert changed == {key for key in backbone().state_dict() if "running" in key}
    assert changed
    assert not model.training


def test_the_statistics_of_dec_ssl_are_those_of_one_epoch() -> None:
    """More epochs do not change them; in training mode throughout, they change."""
    key = "0.layers.0.1.running_mean"
    once = on_views(epochs=1).state_dict()[key]
    assert torch.equal(on_views(epochs=4).state_dict()[key], once)
    assert not torch.equal(on_views(epochs=4, training_mode=None).state_dict()[key], once)


def test_the_views_of_a_probe_differ_by_epoch_and_seed() -> None:
    """Clean images, or one set of views, would give other weights."""
    pixels, labels = data()
    protocol = LINEAR["dec-ssl"]._replace(epochs=3, batch=4)
    clean = fine_tune(
        backbone(), pixels, labels, 3, normalisation=NORMALISATION, protocol=protocol, seed=2
    )
    key = "1.weight"
    first, again, other = (on_views(seed).state_dict()[key] for seed in (2, 2, 3))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, clean.state_dict()[key])


def test_it_repeats_and_draws_nothing_from_the_default_generator() -> None:
    protocol = fine_tuning("fedu", 0.1)._replace(epochs=2)
    net = backbone()
    pixels, labels = data()
    random = torch.get_rng_state()
    fine_tune(net, pixels, labels, 3, normalisation=None, protocol=protocol, seed=0)
    assert torch.equal(torch.get_rng_state(), random)
    first, again, other = (tuned(protocol, seed).state_dict()["1.0.weight"] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_it_learns_the_few_labels() -> None:
    model = tuned(fine_tuning("fedema", 0.1)._replace(epochs=40))
    pixels, labels = data()
    with torch.no_grad():
        assert torch.equal(model(as_input(pixels)).argmax(1), labels)


def test_the_papers_settings() -> None:
    """SwAV has rates of backbone and head by share, which drop to a fifth at epochs 12 and 16."""
    for name in ("fedema", "fedu"):
        for share in (0.01, 0.1):
            protocol = fine_tuning(name, share)  # type: ignore[arg-type]
            assert protocol[:4] == ("adam", 1e-3, 100, 128)
            assert (protocol.head, protocol.head_lr, protocol.drops) == ("mlp", None, ())
    for name, training_mode in (("easyfl", None), ("easyfl-literal", 1)):
        for share in (0.01, 0.1):
            protocol = fine_tuning(name, share)  # type: ignore[arg-type]
            assert protocol[:4] == ("adam", 1e-3, 100, 128)
            assert (protocol.head, protocol.head_only) == ("wide-mlp", True)
            assert protocol.training_mode == training_mode
    few, more = (fine_tuning("ccl", share) for share in (0.01, 0.1))
    assert (few[:4], few.head, few.head_lr) == (("sgd", 0.02, 20, 256), "linear", 5.0)
    assert (more[:4], more.head, more.head_lr) == (("sgd", 0.01, 20, 256), "linear", 0.2)
    assert [more.drop(epoch) for epoch in (0, 11, 12, 15, 16, 19)] == pytest.approx(
        [1, 1, 0.2, 0.2, 0.04, 0.04]
    )
    assert more.changed(None, 0.3, None).head_lr is None  # a given rate applies to all layers
