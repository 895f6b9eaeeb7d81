"""The benchmark's peer computes the same steps and the same views as fedssl."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from benchmarks import peer_views
from benchmarks.clock import spread
from benchmarks.machine import machine
from benchmarks.peer import Case, Ours, Peer, compare
from benchmarks.peer_training import PeerBYOL, PeerClient, peer_round
from fedssl.algorithms import FedAvg
from fedssl.core.state.tree import Tree, model
from fedssl.method import Batch, Constants, Method, Output
from fedssl.topologies.topology import SERVER
from fedssl.training.client import Client
from fedssl.views import Augment, ViewGroup, draw, make_views

Seen = dict[str, list[tuple[Tensor, Tensor]]]
State = dict[str, Tensor]
CPU = torch.device("cpu")
CASE = Case("cnn", hidden=12, dim=8, images=16, peer_images=8, batch=4, clients=3, size=16)
STILL = Augment(crop=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, jitter_p=0.0, gray=0.0)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Record every pair of views that fedssl trains on, by client, in order."""
    views, current = defaultdict(list), threading.local()
    client, objective = FedAvg.client_update, FedAvg.objective

    def named(self: FedAvg, one: Client, message: Tree) -> tuple[Tree, Tree]:
        current.id = one.id
        return client(self, one, message)

    def watched(
        self: FedAvg, method: Method, batch: Batch, out: Output, constants: Constants
    ) -> Tensor:
        views[current.id].append(tuple(batch.views[0]))
        return objective(self, method, batch, out, constants)

    monkeypatch.setattr(FedAvg, "client_update", named)
    monkeypatch.setattr(FedAvg, "objective", watched)
    return views


def one_step(case: Case, seen: Seen) -> tuple[tuple[float, State], tuple[float, State], State]:
    """Return both losses and states after one step on the same views, and the first state."""
    ours = Ours(case, case.pixels(), 1, CPU)
    first = {name: tensor.clone() for name, tensor in ours.trainers[0].method.state_dict().items()}
    peer = PeerBYOL(case.backbone, case.hidden, case.dim)
    peer.load_state_dict(first)
    ours.round()
    ours.close()
    client = PeerClient(seen["0"], case.images, CPU, case.lr)
    client.download(peer)
    client.train()
    assert client.model is not None
    return (
        (ours.loss, dict(ours.trainers[0].method.state_dict())),
        (client.loss, dict(client.model.state_dict())),
        first,
    )


def test_a_step_of_the_peer_is_a_step_of_fedssl(seen: Seen) -> None:
    """The same loss; parameters, statistics and counters, the target's too, so close that a missing
    weight decay (5e-4 of a weight of 0.1, times the rate: 1.6e-6) would show, as would a wrong
    momentum of the target.
    """
    case = Case("cnn", hidden=24, dim=16, images=16, peer_images=16, batch=16, clients=1, size=16)
    (loss, ours), (peer_loss, peer), first = one_step(case, seen)
    assert peer_loss == pytest.approx(loss, abs=1e-5)
    torch.testing.assert_close(peer, ours, rtol=0, atol=5e-7, check_stride=False)
    assert (ours["predictor.3.weight"] - first["predictor.3.weight"]).abs().max() > 0.01


@pytest.mark.slow
def test_a_step_of_a_resnet(seen: Seen) -> None:
    """If activations are zero up to rounding, float32 decides which gradients flow. Both sides
    differ from float64 by about 1e-3 of the gradient's length, so they may differ from each other
    by as much.
    """
    case = Case(
        "resnet18", hidden=24, dim=16, images=16, peer_images=16, batch=16, clients=1, size=16
    )
    (loss, ours), (peer_loss, peer), first = one_step(case, seen)
    assert peer_loss == pytest.approx(loss, abs=1e-5)
    ours_moved, peer_moved = (
        torch.cat([(s[n] - first[n]).flatten() for n in first]) for s in (ours, peer)
    )
    assert (ours_moved - peer_moved).norm() < 1e-2 * ours_moved.norm()


def test_a_round_of_the_peer_is_a_round_of_fedssl(seen: Seen) -> None:
    """From the same weights and views, over two rounds of three clients of unequal size and several
    steps each: the same losses, global model and targets. The learning rate is low: at a high one,
    another order of additions changes the weights of such a small network within ten steps.
    """
    sizes = (32, 48, 70)
    case = Case(
        "cnn", hidden=24, dim=16, images=70, peer_images=70, batch=16, clients=3, size=16, lr=1e-3
    )
    pixels = [images[:n] for images, n in zip(case.pixels(), sizes, strict=True)]
    ours = Ours(case, pixels, 2, CPU)
    first = {name: tensor.clone() for name, tensor in ours.trainers[0].method.state_dict().items()}
    peer = PeerBYOL(case.backbone, case.hidden, case.dim)
    peer.load_state_dict(first)
    clients = [PeerClient(seen[f"{i}"], n, CPU, case.lr) for i, n in enumerate(sizes)]
    for _ in range(2):
        for batches in seen.values():
            batches.clear()
        ours.round()
        peer = peer_round(peer, clients)
        assert [len(seen[f"{i}"]) for i in range(3)] == [2, 3, 4]
        assert sum(c.loss for c in clients) / 3 == pytest.approx(ours.loss, abs=1e-5)
        merged = model(ours.sites[SERVER], "model").tensors()
        theirs = {
            name: t for name, t in peer.state_dict().items() if not name.startswith("target.")
        }
        torch.testing.assert_close(theirs, merged, rtol=0, atol=1e-4, check_stride=False)
        for i, client in enumerate(clients):
            target = model(ours.memory.latest(f"{i}"), "kept").without_prefix("target").tensors()
            torch.testing.assert_close(
                dict(client.model.target.state_dict()), target, rtol=0, atol=1e-4
            )
    ours.close()
    assert (theirs["predictor.3.weight"] - first["predictor.3.weight"]).abs().max() > 0.004


def test_a_round_of_fewer_images_stands_for_a_whole_one() -> None:
    """The peer trains on 8 of 16 images of each of 3 clients: 24 instead of 48. A round of 10 s, 6
    of them training, would have taken 10 + 6·(48/24 − 1) = 16 s.
    """
    ours = Ours(CASE, CASE.pixels(), 1, CPU)
    peer = Peer(
        CASE,
        CASE.pixels(),
        ours.trainers[0].method.state_dict(),
        peer_views.PillowView(Augment(), 16),
    )
    ours.close()
    for client in peer.clients:
        client.seconds = 2.0
    assert peer.full_round(10.0) == pytest.approx(16.0)


def test_both_sides_are_measured_and_divided() -> None:
    view, made_by = peer_views.make_view(Augment(), CASE.size, "pillow")
    found = compare(CASE, CPU, 3, view)
    ours, peer = found["fedssl"], found["peer"]
    assert "Pillow" in made_by
    assert found["ratio"] == pytest.approx(ours["images_per_s"] / peer["images_per_s"], rel=1e-2)
    assert ours["images_per_s"] == pytest.approx(48 / ours["round_s"]["median"], rel=1e-3)
    for side in (ours, peer):
        assert len(side["round_s"]["each"]) == 3
        assert 0 < side["loss"] < 8


def test_spread() -> None:
    assert spread([3.0, 1.0, 2.00004]) == {
        "median": 2.0,
        "least": 1.0,
        "most": 3.0,
        "each": [3.0, 1.0, 2.0],
    }


def test_the_machine_is_named() -> None:
    found = machine()
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert (found["cuda"] is None) is not torch.cuda.is_available()


# -- the peer's views --


def test_a_view_that_changes_nothing_is_the_image() -> None:
    pixels = CASE.pixels()[0]
    pairs = peer_views.Pairs(pixels, peer_views.PillowView(STILL, 16))
    for i in range(3):
        for view in pairs[i]:
            torch.testing.assert_close(view, pixels[i] / 255, rtol=0, atol=0)


def test_views_are_fedssls_in_distribution() -> None:
    """Mean, contrast, saturation and left-to-right slope of 3,000 views of one image: both sides
    draw the same family, so the means of each figure agree within four of their standard errors,
    and the rounding of eight bits.
    """
    ramp = torch.linspace(40, 220, 16)
    image = torch.stack(
        [ramp.expand(16, 16), ramp[:, None].expand(16, 16), torch.full((16, 16), 90.0)]
    ).byte()
    group, n = ViewGroup(1, 16, Augment()), 3000
    uniforms = draw(n, torch.Generator().manual_seed(0), CPU)
    ours = make_views(group, image.expand(n, -1, -1, -1), uniforms)[0]
    random.seed(0)
    view, picture = (
        peer_views.PillowView(group.augment, 16),
        Image.fromarray(image.permute(1, 2, 0).numpy()),
    )
    theirs = torch.stack([view(picture) for _ in range(n)])
    for a, b in zip(_figures(ours), _figures(theirs), strict=True):
        error = ((a.var() + b.var()) / n).sqrt()
        assert abs(a.mean() - b.mean()) < 4 * error + 2 / 255


def _figures(views: Tensor) -> list[Tensor]:
    """Return four figures (n,) of views (n, 3, h, w)."""
    slope = views[..., 8:].mean((1, 2, 3)) - views[..., :8].mean((1, 2, 3))
    return [views.mean((1, 2, 3)), views.flatten(1).std(1), views.std(1).mean((1, 2)), slope.abs()]


@pytest.mark.oracle
def test_operations_are_torchvisions() -> None:
    """Bit by bit, on PIL images, but for the crop's random numbers."""
    functional = pytest.importorskip("torchvision.transforms.functional")
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    for turns in (-0.2, -0.05, 0.0, 0.13, 0.2):
        assert (
            peer_views.turn_hue(image, turns).tobytes()
            == functional.adjust_hue(image, turns).tobytes()
        )
    crop = (3, 5, 20, 17)
    assert (
        peer_views.resized_crop(image, crop, 32).tobytes()
        == functional.resized_crop(image, *crop, [32, 32]).tobytes()
    )
    assert peer_views.gray(image).tobytes() == functional.to_grayscale(image, 3).tobytes()
    assert torch.equal(peer_views.to_tensor(image), functional.to_tensor(image))


@pytest.mark.oracle
def test_torchvisions_views_are_the_same_family() -> None:
    pytest.importorskip("torchvision")
    picture = Image.fromarray(CASE.pixels()[0][0].permute(1, 2, 0).numpy())
    sides = []
    torch.manual_seed(0)
    random.seed(0)
    for which in ("torchvision", "pillow"):
        view, _ = peer_views.make_view(Augment(), 16, which)
        sides.append(_figures(torch.stack([view(picture) for _ in range(3000)])))
    for a, b in zip(*sides, strict=True):
        assert abs(a.mean() - b.mean()) < 4 * ((a.var() + b.var()) / 3000).sqrt()
