"""FedCA: its loss, its dictionary and its alignment against loops that follow the paper's equations
one by one.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from factories import (
    first_site,
    interrupted_in_round,
    make_client,
    make_experiment,
    make_trainer,
    random_pixels,
)
from torch import Tensor, nn
from toy import Federation, Numbers, toy

import fedssl
from fedssl.algorithm import Upload
from fedssl.algorithms import FedAvg, FedCA
from fedssl.algorithms._dictionary import (
    EMPTY,
    OTHERS,
    DictionaryBuilder,
    dictionary_tensors,
    projection_width,
    training_projections,
    update_ensemble,
)
from fedssl.algorithms.fedca import contrast
from fedssl.core.seeds import derive
from fedssl.core.state.codec import dumps
from fedssl.core.state.mean import Mean
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model, tensor
from fedssl.data import Dataset, Images
from fedssl.engine.checkpoints.client_memory import ClientMemory
from fedssl.engine.federate import federate
from fedssl.engine.runtimes.client_round import RoundPosition, RunContext, Shard
from fedssl.engine.runtimes.local import LocalRuntime
from fedssl.engine.uploads.guard import Guard
from fedssl.engine.uploads.records import Reply
from fedssl.method import Batch, Constants, Method, MethodSettings, Output
from fedssl.nets.norm import BatchNorm1d
from fedssl.runs.local import Interrupted
from fedssl.topologies.graphs import Cycle
from fedssl.topologies.topology import SERVER, Star, Topology
from fedssl.training.client import Client
from fedssl.training.trainer import Trainer, TrainSettings

PLAIN = {"dictionary": 0, "beta": 0.0}


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# -- the loss --


def slow_contrast(z: Tensor, index: Tensor, dictionary: Tensor, entry: Tensor, t: float) -> float:
    """Eq. 4-8: for each image the log of the softmax over the batch's second views and all rows
    that count.
    """

    def cosine(a: Tensor, b: Tensor) -> float:
        return float((a / a.norm()) @ (b / b.norm()))

    losses = []
    for i in range(z.shape[1]):
        logits = [cosine(z[0, i], z[1, j]) / t for j in range(z.shape[1])]
        for row, number in zip(dictionary, entry.tolist(), strict=True):
            if number not in (EMPTY, int(index[i])):
                logits.append(cosine(z[0, i], row) / t)
        losses.append(math.log(sum(map(math.exp, logits))) - logits[i])
    return sum(losses) / len(losses)


ENTRY = torch.tensor(
    [OTHERS, 3, EMPTY, 8, OTHERS, EMPTY, 4, OTHERS]
)  # 3 and 8 are in the batch, 4 is not
INDEX = torch.tensor([3, 1, 8, 0, 9])


@pytest.mark.parametrize("t", [0.5, 0.1])
def test_the_loss_is_the_papers(t: float) -> None:
    z = noise(2, 5, 4)
    dictionary = F.normalize(noise(8, 4, seed=1), dim=1)
    found = contrast(z, INDEX, dictionary, ENTRY, t)
    assert found.item() == pytest.approx(slow_contrast(z, INDEX, dictionary, ENTRY, t), rel=1e-5)
    alone = contrast(z, INDEX, None, None, t)
    assert alone.item() == pytest.approx(
        slow_contrast(z, INDEX, dictionary[:0], ENTRY[:0], t), rel=1e-5
    )
    assert found > alone
    assert contrast(z.flip(0), INDEX, None, None, t) != alone  # one way only: not NT-Xent


def test_masked_rows_have_no_effect() -> None:
    """An empty row affects no image; a client's row of an image does not affect that image."""
    z = noise(2, 5, 4)
    dictionary = F.normalize(noise(8, 4, seed=1), dim=1)
    before = contrast(z, INDEX, dictionary, ENTRY, 0.5)
    changed = dictionary.clone()
    changed[[2, 5]] = 1e4
    assert torch.equal(contrast(z, INDEX, changed, ENTRY, 0.5), before)
    for row, own in ((1, 0), (3, 2)):  # made of images 3 and 8, in the batch as numbers 0 and 2
        one = z[:, own : own + 1]
        changed = dictionary.clone()
        changed[row] = -dictionary[row]
        alone = [contrast(one, INDEX[own : own + 1], d, ENTRY, 0.5) for d in (dictionary, changed)]
        assert torch.equal(*alone)
        assert not torch.equal(
            contrast(z, INDEX, changed, ENTRY, 0.5), before
        )  # for the others it is a negative


def test_gradients_reach_both_views_and_no_masked_row() -> None:
    z = noise(2, 5, 4).requires_grad_()
    dictionary = noise(8, 4, seed=1).requires_grad_()
    contrast(z, INDEX, dictionary, ENTRY, 0.5).backward()
    assert z.grad is not None
    assert dictionary.grad is not None
    assert torch.isfinite(z.grad).all()
    assert z.grad.abs().sum((1, 2)).gt(0).all()
    assert dictionary.grad.abs().sum(1).gt(0).tolist() == (ENTRY != EMPTY).tolist()


# -- the dictionary, at a site --


def upload(
    client: str,
    rows: list[list[float]],
    weight: float,
    w: float = 0.0,
    index: list[int] | None = None,
) -> Upload:
    state = toy().state.pick(("backbone",))
    moved = State(state.layout, state.floats + w, state.counts)
    numbers = index if index is not None else list(range(10, 10 + len(rows)))
    features = torch.tensor(rows, dtype=torch.float32).reshape(len(rows), 2)
    tree = {"model": moved, "features": features, "index": torch.tensor(numbers, dtype=torch.int64)}
    return Upload(client, weight, tree)


def site(**more: Any) -> Tree:
    return {"model": toy().state.pick(("backbone",)), **more}


def test_two_clients_merged_by_hand() -> None:
    """With K = 5 and two clients, the dictionary has the first two rows of each. The weights 10 + 4
    and 10 + 8, of 1 and 3 images, have the mean 17.
    """
    a = upload("A", [[1, 0], [2, 0], [3, 0]], 1, 4)
    b = upload("B", [[0, 1], [0, 2], [0, 3]], 3, 8, [7, 5, 6])
    merged = FedCA(dictionary=5, beta=0).merge(site(h_align=torch.ones(1)), iter([a, b]), Mean)
    assert merged.keys() == {"model", "features", "owner", "index", "share", "h_align"}
    assert model(merged, "model").tensors()["backbone.w"].item() == 17
    assert tensor(merged, "features").tolist() == [[1, 0], [2, 0], [0, 1], [0, 2]]
    assert tensor(merged, "owner").tolist() == [derive("A")] * 2 + [derive("B")] * 2
    assert tensor(merged, "index").tolist() == [10, 11, 7, 5]
    assert merged["share"] == 2
    assert tensor(merged, "h_align").tolist() == [1]


@pytest.mark.parametrize(
    ("capacity", "counts", "kept", "share"),
    [
        (6, [9, 9, 9], [2, 2, 2], 2),
        (7, [9, 9, 9], [2, 2, 2], 2),  # equal shares: one row stays empty
        (6, [9, 1, 0], [2, 1, 0], 2),  # a client with fewer rows leaves some empty
        (6, [4], [4], 6),
        (3, [2, 2, 2, 2, 2], [1, 1, 1, 0, 0], 1),  # more clients than rows
        (1024, [1024] * 5, [204] * 5, 204),
        (8, [8] * 7, [1] * 7, 1),
    ],
)
def test_equal_shares_for_any_set_of_clients(
    capacity: int, counts: list[int], kept: list[int], share: int
) -> None:
    uploads = [upload(f"c{k}", [[k, i] for i in range(n)], 1) for k, n in enumerate(counts)]
    merged = FedCA(dictionary=capacity, beta=0).merge(site(), iter(uploads), Mean)
    expected = [[float(k), float(i)] for k, n in enumerate(kept) for i in range(n)]
    assert tensor(merged, "features").tolist() == expected
    assert tensor(merged, "owner").tolist() == [derive(f"c{int(k)}") for k, _ in expected]
    assert tensor(merged, "index").tolist() == [10 + int(i) for _, i in expected]
    assert merged["share"] == share


def test_columns_of_different_length_are_cut_to_the_shorter() -> None:
    merged = FedCA(dictionary=9, beta=0).merge(
        site(), iter([upload("a", [[1, 1]] * 4, 1, index=[1, 2])]), Mean
    )
    assert (
        len(tensor(merged, "features"))
        == len(tensor(merged, "index"))
        == len(tensor(merged, "owner"))
        == 2
    )


def test_a_site_holds_no_more_than_it_keeps() -> None:
    """The site stores two rows of each of three clients, not the hundred that each sent."""
    builder = DictionaryBuilder(6)
    for client in "ABC":
        builder.collect(upload(client, [[1, 0]] * 100, 1))
    assert [features.untyped_storage().nbytes() for features, _, _ in builder._parts] == [
        2 * 2 * 4
    ] * 3


def test_the_dictionary_as_a_client_uses_it() -> None:
    """Rows have unit length and are padded to one shape; the client's own rows have the number of
    the image as their entry.
    """
    merged = FedCA(dictionary=6, beta=0).merge(
        site(), iter([upload("A", [[3, 4], [0, 2]], 1), upload("B", [[0, 5]], 1)]), Mean
    )
    for client, entry in (
        ("A", [10, 11, OTHERS]),
        ("B", [OTHERS, OTHERS, 10]),
        ("C", [OTHERS] * 3),
    ):
        constants = dictionary_tensors(merged, client, 6)
        assert constants["dictionary"].tolist() == [
            pytest.approx(row) for row in ([0.6, 0.8], [0, 1], [0, 1], [0, 0], [0, 0], [0, 0])
        ]
        assert constants["entry"].tolist() == entry + [EMPTY] * 3


def test_switched_off_the_dictionary_is_sent_nowhere() -> None:
    """The rounds are those of FedAvg, since training is scripted."""
    ours = Federation(FedCA(**PLAIN))
    theirs = Federation(FedAvg())
    for _ in range(3):
        assert ours.round("A", "B") == theirs.round("A", "B")
        assert ours.held() == theirs.held()
    assert ours.site.keys() == ours.uploads["A"].keys() == {"model"}
    assert ours.start_of("C") == Numbers(
        ours.held()["encoder"], ours.held()["encoder"], ours.held()["predictor"]
    )


# -- the dictionary, at a client --


@pytest.mark.parametrize("name", ["simclr", "byol", "dino", "mocov1"])
def test_the_width_of_projections(name: str) -> None:
    trainer = make_trainer(name)
    before = trainer.method.state.clone()
    trainer.method.train()
    assert projection_width(trainer.method) == trainer.embed(random_pixels(2), "z").shape[1]
    assert trainer.method.training
    assert torch.equal(before.floats, trainer.method.state.floats)
    assert torch.equal(before.counts, trainer.method.state.counts)


@torch.no_grad()
def slow_projections(method: Method, images: Tensor) -> list[Tensor]:
    method.eval()
    found = [method.projector(method.backbone(image[None].float() / 255))[0] for image in images]
    method.train()
    return found


@pytest.mark.parametrize(
    ("alpha", "name"), [(0.5, "simclr"), (0.8, "simclr"), (0.0, "simclr"), (0.5, "byol")]
)
def test_three_rounds_of_temporal_ensembling(alpha: float, name: str) -> None:
    """Eq. 9-10, image by image: Z ← αZ + (1 − α)z from Z = 0, and z̃ = Z/(1 − αᵗ) at unit length.
    Rows are projections, also if the method has a predictor.
    """
    algorithm = FedCA(dictionary=12, alpha=alpha, beta=0)
    trainer = make_trainer(name)
    images = random_pixels(10)
    site = first_site(algorithm, trainer)
    Z: list[Tensor] = [torch.zeros(5) for _ in images]
    memory: Tree = {}
    drawn = []
    for t, rows in (
        (1, 10),
        (2, 10),
        (3, 4),
    ):  # ten images; twelve rows are asked for, and then four
        client = make_client(trainer, images, memory=memory, round=t, lr=0.1)
        message = algorithm.broadcast(site, "a")
        sent, memory = algorithm.client_update(client, message)
        assert [
            h.upload
            for h in Guard(algorithm.upload_schema(trainer.method), 0, "a", {})(
                [Reply("a", 10, sent, None)]
            )
        ] == [sent]
        Z = [
            alpha * old + (1 - alpha) * z
            for old, z in zip(Z, slow_projections(trainer.method, images), strict=True)
        ]
        unit = [(z / (1 - alpha**t)) / (z / (1 - alpha**t)).norm() for z in Z]
        index = tensor(sent, "index").tolist()
        assert len(set(index)) == len(index) == rows
        for i, row in zip(index, tensor(sent, "features"), strict=True):
            assert torch.allclose(row, unit[i], atol=1e-5)
        assert torch.allclose(tensor(memory, "ensemble"), torch.stack(Z), atol=1e-5)
        drawn.append(index)
        site = algorithm.merge(
            site, iter([Upload(c, 1.0, sent) for c in ("abc" if t > 1 else "a")]), Mean
        )
        assert site["share"] == (4 if t > 1 else 12)
    assert drawn[0] != drawn[1]  # new ones in each round
    assert drawn[2] != drawn[1][:4]


class Brightness(nn.Module):
    """A backbone of one feature: the mean of an image's pixels."""

    dim = 1

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((1, 2, 3))[:, None]


class Normalised(Method):
    """A method whose projection is the brightness of an image after a BatchNorm layer."""

    def __init__(self, settings: MethodSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.projector = nn.Sequential(BatchNorm1d(1))

    def forward(self, batch: Batch) -> Output:
        raise NotImplementedError

    def loss(self, out: Output, constants: Constants) -> Tensor:
        raise NotImplementedError


def _normalising_client(levels: list[int], batch: int, **changes: Any) -> Client:
    """Return a client with an image of each brightness, in 255ths."""
    method = Normalised(MethodSettings(), Brightness(), 2).reside()
    images = torch.tensor(levels, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2)
    return make_client(Trainer(method, TrainSettings(batch=batch)), images, **changes)


def test_rows_in_training_mode_by_hand() -> None:
    """BatchNorm over two images gives the brighter one 1 and the darker one −1; over all three,
    0, 0.2 and 0.4 become −√1.5, 0 and √1.5. With running statistics, 0 and 1, they stay as they
    are. Three images are two batches of two: the last one is completed by the first image drawn.
    """
    client = _normalising_client([0, 51, 102], batch=2)
    before = client.method.state.clone()
    first, second, third = torch.randperm(
        3, generator=client.generator("dictionary batches")
    ).tolist()
    sign = {}
    for a, b in ((third, first), (first, second)):  # of an image drawn twice, the first row counts
        sign[a] = 1.0 if a > b else -1.0
        sign[b] = -sign[a]
    expected = torch.tensor([[sign[0]], [sign[1]], [sign[2]]])
    torch.testing.assert_close(training_projections(client), expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(
        update_ensemble(client, 0.25, "train"), 0.75 * expected, rtol=0, atol=1e-3
    )
    assert torch.equal(client.method.state.floats, before.floats)
    assert torch.equal(client.method.state.counts, before.counts)
    assert client.method.uncounted_batches == 0
    eval_rows = torch.tensor([[0.0], [0.2], [0.4]])
    torch.testing.assert_close(
        update_ensemble(client, 0.0, "eval"), eval_rows, rtol=1e-4, atol=1e-4
    )
    larger = _normalising_client([0, 51, 102], batch=128)
    root = math.sqrt(1.5)
    torch.testing.assert_close(
        training_projections(larger), torch.tensor([[-root], [0.0], [root]]), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("count", [8, 9, 15, 30])
def test_batches_of_rows_have_the_size_of_training_and_new_members_each_round(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbouring images, often of one class, must not share their statistics in every round."""
    seen = []
    encode = Normalised.encode

    def recorded(method: Method, images: Tensor, *args: Any, **options: Any) -> Any:
        seen.append((255 * images[:, 0, 0, 0]).round().int().tolist())
        return encode(method, images, *args, **options)

    monkeypatch.setattr(Normalised, "encode", recorded)
    for round in (0, 1):
        training_projections(_normalising_client(list(range(count)), batch=8, round=round))
    batches = -(-count // 8)
    assert [len(batch) for batch in seen] == [8] * 2 * batches
    for part in (seen[:batches], seen[batches:]):
        flat = [image for batch in part for image in batch]
        assert sorted(flat[:count]) == list(range(count))
        assert flat[count:] == flat[: len(flat) - count]
    assert seen[0] != seen[batches]
    assert sorted(seen[0]) != list(range(8)) or count == 8


def test_a_client_in_training_mode_sends_the_rows_of_that_mode() -> None:
    sent = {}
    for mode in ("eval", "train"):
        algorithm = FedCA(dictionary=12, beta=0, dictionary_mode=mode)
        trainer = make_trainer("simclr")
        client = make_client(trainer, random_pixels(10), lr=0.1)
        upload, memory = algorithm.client_update(client, first_site(algorithm, trainer))
        rows = (
            training_projections(client) if mode == "train" else trainer.embed(client.pixels, "z")
        )
        index = tensor(upload, "index")
        assert torch.equal(tensor(memory, "ensemble"), 0.5 * rows)
        assert torch.equal(tensor(upload, "features"), F.normalize(0.5 * rows[index], dim=-1))
        sent[mode] = upload
    assert torch.equal(model(sent["eval"], "model").floats, model(sent["train"], "model").floats)
    assert not torch.allclose(tensor(sent["eval"], "features"), tensor(sent["train"], "features"))


def test_a_clients_own_rows_are_masked_through_a_whole_round() -> None:
    """One client, and a dictionary with a row of each of its images: an image uses all rows but its
    own.
    """
    trainer = make_trainer("simclr")
    images = random_pixels(8)
    seen = []

    class Recording(FedCA):
        def objective(
            self, method: Method, batch: Batch, out: Output, constants: Constants
        ) -> Tensor:
            seen.append((batch.index, constants["entry"], constants["dictionary"]))
            return super().objective(method, batch, out, constants)

    algorithm = Recording(dictionary=8, beta=0)
    site = first_site(algorithm, trainer)
    memory: Tree = {}
    for round in range(2):
        sent, memory = algorithm.client_update(
            make_client(trainer, images, memory=memory, round=round, lr=0.1), site
        )
        site = algorithm.merge(site, iter([Upload("a", 1.0, sent)]), Mean)
    (_, first, empty), (index, entry, dictionary) = seen
    assert first.tolist() == [EMPTY] * 8
    assert empty.abs().sum() == 0
    assert (entry[:, None] == index).sum(0).tolist() == [1] * 8
    assert sorted(entry.tolist()) == list(range(8))
    assert dictionary.shape == empty.shape


# -- the alignment --


def _given(trainer: Trainer, public: Tensor) -> dict[str, Tensor]:
    h = trainer.embed(public, "h")
    z = trainer.embed(public, "z")
    return {"public": public, "h_align": noise(*h.shape), "z_align": noise(*z.shape, seed=1)}


def _batch(method: Method, images: Tensor, draws: dict[str, Tensor]) -> Batch:
    views = torch.stack([method.clean(images), method.clean(images.flip(3))])
    return Batch(torch.arange(len(images)), images, (views,), None, draws, torch.zeros(()))


def test_the_alignment_by_hand() -> None:
    """Eq. 11-14, over the four public images that are drawn: squared distances, summed over
    entries, averaged.
    """
    algorithm = FedCA(dictionary=0, beta=0.3)
    trainer = make_trainer("simclr")
    public = random_pixels(10, 3)
    method = trainer.method.train()
    constants = _given(trainer, public)
    batch = _batch(method, random_pixels(8), {"public": torch.tensor([0.0, 0.55, 0.999, 0.55])})
    out = method(batch)
    z = [F.normalize(view, dim=1) for view in out.z]
    expected = F.cross_entropy(z[0] @ z[1].T / 0.5, torch.arange(8))
    h_seen = method.backbone(public[[0, 5, 9, 5]].float() / 255)
    z_seen = method.projector(h_seen)
    for k, i in enumerate((0, 5, 9, 5)):
        far = ((h_seen[k] - constants["h_align"][i]) ** 2).sum() + (
            (z_seen[k] - constants["z_align"][i]) ** 2
        ).sum()
        expected = expected + 0.3 * far / 4
    assert torch.allclose(algorithm.objective(method, batch, out, constants), expected, rtol=1e-5)


def test_the_alignment_has_a_gradient_and_moves_no_statistics() -> None:
    trainer = make_trainer("simclr")
    public = random_pixels(10, 3)
    method = trainer.method.train()
    constants = _given(trainer, public)
    batch = _batch(
        method,
        random_pixels(8),
        {"public": torch.rand(6, generator=torch.Generator().manual_seed(0))},
    )
    out = method(batch)
    method.count_batch()
    before = method.state.clone()
    names, weights = zip(*method.named_parameters(), strict=True)
    grads = {}
    for beta in (0.0, 1.0, 2.0):
        loss = FedCA(dictionary=0, beta=beta).objective(method, batch, out, constants)
        grads[beta] = torch.autograd.grad(loss, weights, retain_graph=True)
    assert torch.equal(method.state.floats, before.floats)
    assert torch.equal(method.state.counts, before.counts)
    assert method.uncounted_batches == 0
    for name, none, once, twice in zip(names, grads[0.0], grads[1.0], grads[2.0], strict=True):
        if not name.endswith("bias"):  # a bias before a norm layer has none
            assert not torch.allclose(once, none), name
        assert torch.allclose(twice - none, 2 * (once - none), rtol=1e-3, atol=1e-4), name


def test_draws_cover_all_public_images_and_no_others() -> None:
    draws = FedCA(aligned=5000).draw(8, torch.Generator().manual_seed(0))["public"]
    assert set((draws * 7).long().tolist()) == set(range(7))
    largest = torch.tensor(1 - 2**-24)  # that torch.rand can give
    for n in (1, 3, 7, 100, 3200, 49_999, 99_991, 1 << 20):
        assert (largest * n).long() == n - 1
    assert FedCA(beta=0).draw(8, torch.Generator()) == {}


@pytest.mark.parametrize("name", ["simclr", "byol"])
def test_the_alignment_model_is_trained_like_a_client(name: str) -> None:
    """Training takes three rounds of two epochs on the public images, at the rounds' rates; the
    site's model is not changed by it.
    """
    settings = {"epochs": 2, "lr": 0.1, "batch": 4}
    public = random_pixels(9, 3)
    algorithm = FedCA(dictionary=0)
    trainer = make_trainer(name, settings)
    other = make_trainer(name, settings)
    first = trainer.method.state.clone()
    home = make_client(trainer, random_pixels(0), id="home", seed=5, rounds=3, public=public)
    site = algorithm.init(home)
    assert torch.equal(model(site, "model").floats, first.pick(trainer.method.online).floats)
    assert torch.equal(trainer.method.state.floats, first.floats)
    assert torch.equal(trainer.method.state.counts, first.counts)
    assert [m.steps for m in home.metrics] == [4, 4, 4]  # two epochs of two batches of four

    def one_way(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        z = [F.normalize(view, dim=1) for view in out.z]
        return F.cross_entropy(z[0] @ z[1].T / 0.5, torch.arange(len(batch.index)))

    for r in range(3):
        lr = 0.5 * 0.1 * (1 + math.cos(math.pi * r / 3))
        again = make_client(
            other,
            public,
            id="home",
            seed=5,
            round=r,
            lr=lr,
            progress=r / 3,
            metrics=[home.metrics[0]] * r,
        )
        again.train(one_way, {})
    assert torch.allclose(tensor(site, "h_align"), other.embed(public, "h"), rtol=1e-3, atol=1e-4)
    assert torch.allclose(tensor(site, "z_align"), other.embed(public, "z"), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(tensor(site, "h_align"), trainer.embed(public, "h"), atol=1e-3)


def test_the_ratio_of_the_losses_is_noted_once_a_round() -> None:
    """The note is the alignment divided by the other loss: twice the weight doubles it, however
    large it is.
    """
    ratios = {}
    for beta in (1.0, 2.0):
        algorithm = FedCA(dictionary=0, beta=beta)
        trainer = make_trainer("simclr")
        site = {"model": trainer.method.state.pick(trainer.method.online)}
        site |= {
            key: t for key, t in _given(trainer, random_pixels(10, 3)).items() if key != "public"
        }
        client = make_client(trainer, random_pixels(16), lr=0.0, public=random_pixels(10, 3))
        algorithm.client_update(client, site)
        assert client.notes.keys() == {"alignment_ratio"}
        ratios[beta] = client.notes["alignment_ratio"]
    assert ratios[2.0] == pytest.approx(
        2 * ratios[1.0], rel=1e-4
    )  # nothing was trained: the losses are the same
    assert ratios[1.0] > 0.1


# -- whole rounds --


class OneWay(FedAvg):
    """FedCA without dictionary and alignment, written by hand."""

    def objective(self, method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        z = [view / view.norm(dim=1, keepdim=True) for view in out.z]
        return F.cross_entropy(z[0] @ z[1].T / 0.5, torch.arange(len(batch.index)))


def federated(algorithm: Any, topology: Topology | None = None) -> Any:
    topology = topology or Star()
    trainers = [make_trainer("simclr") for _ in range(2)]
    public = {trainers[0].device: random_pixels(12, 9)}
    shards = {c: Shard(random_pixels(n, n)) for c, n in {"a": 20, "b": 16, "c": 24, "d": 9}.items()}

    def position(round: int) -> RoundPosition:
        return RoundPosition(0.05, round / 3, 3)

    context = RunContext(algorithm, 3, position, public=public)
    runtime = LocalRuntime(context, shards, trainers, ClientMemory())
    schema = algorithm.upload_schema(trainers[0].method)
    first = first_site(algorithm, trainers[0], seed=3, rounds=3, public=random_pixels(12, 9))
    sites = dict.fromkeys(topology.sites(runtime.clients), first)
    done = list(federate(algorithm, topology, runtime, sites, schema=schema, rounds=3, seed=3))
    runtime.close()
    assert not [report.dropped for round in done for report in round.reports if report.dropped]
    return done


def test_without_both_modules_it_is_the_one_way_loss() -> None:
    ours, theirs = (
        model(federated(algorithm)[-1].sites[SERVER], "model")
        for algorithm in (FedCA(**PLAIN), OneWay())
    )
    assert torch.allclose(ours.floats, theirs.floats, rtol=1e-3, atol=1e-4)
    method = make_trainer("simclr").method
    assert not torch.allclose(ours.floats, method.state.pick(method.online).floats, atol=1e-2)


def test_rounds_with_both_modules() -> None:
    done = federated(FedCA(dictionary=32))
    for round, before in zip(done[1:], done, strict=False):
        site = round.sites[SERVER]
        assert site["share"] == 8
        assert tensor(site, "features").shape == (32, 5)
        assert tensor(site, "owner").tolist() == [derive(c) for c in "abcd" for _ in range(8)]
        assert all(report.bytes_up < report.bytes_down for report in round.reports)
        assert all(report.notes["alignment_ratio"] > 0 for report in round.reports)
        for key in ("h_align", "z_align"):
            assert torch.equal(tensor(site, key), tensor(before.sites[SERVER], key))
        assert not torch.equal(tensor(site, "features"), tensor(before.sites[SERVER], "features"))


def test_peers_share_with_their_neighbours() -> None:
    """In a cycle of four each peer receives from its two neighbours and itself: 9 // 3 rows of
    each.
    """
    done = federated(FedCA(dictionary=9, beta=0), Cycle())
    for peer, near in {"a": "abd", "b": "abc", "c": "bcd", "d": "acd"}.items():
        site = done[-1].sites[peer]
        assert tensor(site, "owner").tolist() == [derive(c) for c in near for _ in range(3)]
        assert site["share"] == 3


def _tiny() -> Dataset:
    pixels = random_pixels(120, 2, size=10)
    return Dataset(Images(pixels, torch.arange(120) % 3), Images(pixels[:12], torch.arange(12) % 3))


@pytest.mark.parametrize(("workers", "mode"), [(1, "eval"), (2, "eval"), (2, "train")])
def test_a_resumed_run_equals_an_uninterrupted_one(workers: int, mode: str, tmp_path: Path) -> None:
    algorithm = {"name": "fedca", "dictionary": 20, "dictionary_mode": mode}
    chosen = make_experiment(rounds=4, method="simclr", algorithm=algorithm)
    whole = fedssl.run(
        chosen, tmp_path / "whole", "cpu", dataset=_tiny(), quiet=True, set={"train.workers": 1}
    )
    changes = {"train.workers": workers}
    with interrupted_in_round(3), pytest.raises(Interrupted):
        fedssl.run(chosen, tmp_path / "parts", "cpu", dataset=_tiny(), quiet=True, set=changes)
    parts = fedssl.run(chosen, tmp_path / "parts", "cpu", dataset=_tiny(), quiet=True, set=changes)
    assert dumps({"model": parts.models()["global"]}) == dumps({"model": whole.models()["global"]})
    for ours, theirs in zip(parts.rounds, whole.rounds, strict=True):
        assert [c["notes"] for c in ours["clients"]] == [c["notes"] for c in theirs["clients"]]
    losses = [line["loss"] for line in whole.rounds]
    assert all(map(math.isfinite, losses))
