"""Fine-tuning: the same steps as a plain loop, of the whole model."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.method import Normalisation
from fedssl.nets import CNN
from fedssl.probes import Name, Protocol, fine_tune, fine_tuning
from fedssl.seeds import derive, generator

NORMALISATION = Normalisation((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
SCALE = [torch.tensor(values)[:, None, None] for values in NORMALISATION]


def data(n: int = 11) -> tuple[Tensor, Tensor]:
    pixels = torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return pixels, torch.arange(n) % 3


def backbone() -> CNN:
    torch.manual_seed(5)
    return CNN()


def tuned(how: Protocol, seed: int = 0) -> nn.Module:
    return fine_tune(backbone(), *data(), 3, NORMALISATION, how, seed)


@pytest.mark.parametrize(("name", "share"), [("fedema", 0.01), ("ccl", 0.1)])
def test_the_same_steps_as_a_plain_loop(name: Name, share: float) -> None:
    """11 images in batches of 5: the last has one image, of which there are no statistics, and is passed over.
    SwAV's rates become a fifth after 3 and after 4 of 5 epochs."""
    how = fine_tuning(name, share)._replace(epochs=5, batch=5)
    found = tuned(how, seed=2)
    torch.manual_seed(derive(2, "fine-tuned head"))
    head = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 3)) if name == "fedema" else nn.Linear(512, 3)
    model, (pixels, labels), stream = nn.Sequential(backbone(), head).train(), data(), generator(2, "fine-tuning")
    for epoch in range(5):
        drop = 0.2 ** ((epoch >= 3) + (epoch >= 4))
        if name == "fedema" and epoch == 0:
            optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        elif name == "ccl" and epoch == 0:
            parts = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[1].parameters(), "lr": 0.2}]
            optimizer = torch.optim.SGD(parts, momentum=0.9)
        if name == "ccl":
            optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 0.01 * drop, 0.2 * drop
        order = torch.randperm(11, generator=stream)
        for index in (order[:5], order[5:10]):
            optimizer.zero_grad()
            F.cross_entropy(model((pixels[index] / 255 - SCALE[0]) / SCALE[1]), labels[index]).backward()
            optimizer.step()
    expected = model.state_dict()
    for key, tensor in found.state_dict().items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-4, atol=1e-5, msg=key)


def test_every_layer_of_the_backbone_moves() -> None:
    """Two public codes freeze it by mistake. Its normalisation layers' statistics move too."""
    model = tuned(fine_tuning("fedema", 0.1)._replace(epochs=2))
    assert not model.training
    before = backbone().state_dict()
    after = {key.removeprefix("0."): tensor for key, tensor in model.state_dict().items() if key.startswith("0.")}
    assert after.keys() == before.keys()
    still = {key for key in before if torch.equal(after[key], before[key])}
    assert still == {key for key in before if key.endswith("num_batches_tracked")}  # a method counts those, if any does
    assert any("running_mean" in key for key in before)


def test_frozen_the_head_alone_learns() -> None:
    """As a plain loop over features in eval mode has it; of the backbone nothing moves, statistics neither."""
    how = fine_tuning("fedema", 0.1)._replace(epochs=3, batch=5)
    found = fine_tune(backbone(), *data(10), 3, NORMALISATION, how, 2, frozen=True)
    torch.manual_seed(derive(2, "fine-tuned head"))
    head, (pixels, labels) = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 3)), data(10)
    with torch.no_grad():
        features = backbone().eval()((pixels / 255 - SCALE[0]) / SCALE[1])
    optimizer, stream = torch.optim.Adam(head.parameters(), 1e-3), generator(2, "fine-tuning")
    for _ in range(3):
        for index in torch.randperm(10, generator=stream).split(5):
            optimizer.zero_grad()
            F.cross_entropy(head(features[index]), labels[index]).backward()
            optimizer.step()
    expected = nn.Sequential(backbone(), head).state_dict()
    for key, tensor in found.state_dict().items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-4, atol=1e-5, msg=key)
    assert all(torch.equal(found.state_dict()[f"0.{key}"], tensor) for key, tensor in backbone().state_dict().items())
    assert not found.training


def test_it_repeats_and_draws_nothing_from_the_default_generator() -> None:
    how, net = fine_tuning("fedu", 0.1)._replace(epochs=2), backbone()
    random = torch.get_rng_state()
    fine_tune(net, *data(), 3, None, how, 0)
    assert torch.equal(torch.get_rng_state(), random)
    first, again, other = (tuned(how, seed)[1][0].weight for seed in (0, 0, 1))  # type: ignore[index]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_it_learns_the_few_labels() -> None:
    model = tuned(fine_tuning("fedema", 0.1)._replace(epochs=40))
    pixels, labels = data()
    with torch.no_grad():
        assert torch.equal(model((pixels / 255 - SCALE[0]) / SCALE[1]).argmax(1), labels)


def test_the_papers_settings() -> None:
    """What methods.md says, and SwAV's own: rates of backbone and head by share, a fifth from epochs 12 and 16."""
    for name in ("fedema", "fedu"):
        for share in (0.01, 0.1):
            how = fine_tuning(name, share)  # type: ignore[arg-type]
            assert (how[:4], how.head, how.head_lr, how.drops) == (("adam", 1e-3, 100, 128), "mlp", None, ())
    few, more = (fine_tuning("ccl", share) for share in (0.01, 0.1))
    assert (few[:4], few.head, few.head_lr) == (("sgd", 0.02, 20, 256), "linear", 5.0)
    assert (more[:4], more.head, more.head_lr) == (("sgd", 0.01, 20, 256), "linear", 0.2)
    assert [more.drop(epoch) for epoch in (0, 11, 12, 15, 16, 19)] == pytest.approx([1, 1, 0.2, 0.2, 0.04, 0.04])
    assert more.changed(None, 0.3, None).head_lr is None  # a rate that is given is that of all
