"""Local training: batches, schedules, and steps against torch.optim."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from error_messages import raises
from factories import make_client, make_trainer, random_pixels
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedssl.core.errors import ClientError, ConfigError
from fedssl.core.state.tree import Tree
from fedssl.method import METHODS, Batch, Constants, Method, Output
from fedssl.training.trainer import (
    Metrics,
    Stopped,
    Trainer,
    TrainingTask,
    TrainSettings,
    resolve_mode,
    resolve_precision,
)

EVERY = METHODS.names()


def task(pixels: Tensor, seed: int = 0, lr: float = 0.05, progress: float = 0.0) -> TrainingTask:
    labels = torch.arange(len(pixels)) % 5
    return TrainingTask(
        pixels, labels, torch.Generator().manual_seed(seed), lr, progress, threading.Event()
    )


class Watched:
    """The method's loss, with a list of all batches."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def __call__(self, method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        self.batches.append(
            batch._replace(
                views=tuple(v.clone() for v in batch.views), progress=batch.progress.clone()
            )
        )
        return method.loss(out, constants)


# -- batches --


@pytest.mark.parametrize("n", [2, 3, 5, 15, 8, 2 * 8 + 1, 3 * 8])
@pytest.mark.parametrize("name", EVERY)
def test_batches_of_any_number_of_images(name: str, n: int) -> None:
    """The batch shrinks to the number of images; each image occurs at most once an epoch."""
    trainer = make_trainer(name, {"batch": 8, "epochs": 2})
    watched = Watched()
    metrics = trainer.fit(task(random_pixels(n)), watched, {})
    size = min(8, n)
    per_epoch = n // size
    assert [len(b.index) for b in watched.batches] == [size] * (2 * per_epoch)
    assert (metrics.steps, metrics.images) == (2 * per_epoch, 2 * per_epoch * size)
    for epoch in (watched.batches[:per_epoch], watched.batches[per_epoch:]):
        seen = torch.cat([b.index for b in epoch])
        assert len(seen.unique()) == len(seen)
        assert 0 <= int(seen.min()) <= int(seen.max()) < n
    assert math.isfinite(metrics.loss)
    assert metrics.seconds > 0


def test_epochs_have_different_orders() -> None:
    watched = Watched()
    make_trainer("simclr", {"batch": 16, "epochs": 3}).fit(task(random_pixels(16)), watched, {})
    orders = {tuple(b.index.tolist()) for b in watched.batches}
    assert len(orders) == 3
    assert all(sorted(order) == list(range(16)) for order in orders)


def test_a_batch_holds_the_images_of_its_rows() -> None:
    images = random_pixels(20)
    watched = Watched()
    make_trainer("byol").fit(task(images, progress=0.25)._replace(labels=None), watched, {})
    for batch in watched.batches:
        assert torch.equal(batch.images, images[batch.index])
        assert batch.views[0].shape == (2, 8, 3, 8, 8)
        assert not torch.equal(batch.views[0][0], batch.views[0][1])
        assert batch.progress == 0.25
        assert batch.labels is None


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("name", EVERY)
def test_too_few_images(name: str, n: int) -> None:
    trainer = make_trainer(name)
    before = trainer.method.state.clone()
    with pytest.raises(ClientError, match=f"training needs at least 2, but it has {n}"):
        trainer.fit(task(random_pixels(n)), Watched(), {})
    assert torch.equal(trainer.method.state.floats, before.floats)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite(bad: float) -> None:
    def objective(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        return method.loss(out, constants) * constants["factor"]

    with raises(ClientError):
        make_trainer().fit(task(random_pixels(16)), objective, {"factor": torch.tensor(bad)})


def test_a_last_step_that_breaks_the_weights_is_detected() -> None:
    """Its loss is that of the weights before the step, so that the weights must be checked too."""
    with raises(ClientError):
        make_trainer("simclr").fit(task(random_pixels(8), lr=math.inf), Watched(), {})


def test_one_bad_step_among_good_ones_is_detected() -> None:
    losses = iter([1.0, math.nan, 1.0])

    def objective(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        return out.z.detach().sum() * 0 + out.p.sum() * 0 + next(losses)

    with raises(ClientError):
        make_trainer("simsiam").fit(task(random_pixels(24)), objective, {})


def test_a_request_to_stop_ends_training_within_a_step() -> None:
    stopping = task(random_pixels(24))

    def objective(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        assert not stopping.stop.is_set(), "a step after the request"
        stopping.stop.set()
        return method.loss(out, constants)

    with pytest.raises(Stopped):
        make_trainer().fit(stopping, objective, {})


def test_the_loss_is_the_mean_over_steps() -> None:
    values = iter([3.0, 5.0, 10.0])

    def objective(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        return out.p.sum() * 0 + next(values)

    assert make_trainer("simsiam").fit(task(random_pixels(24)), objective, {}).loss == 6.0


# -- schedules --


@given(st.sampled_from(["cosine", "constant", "step"]), st.integers(1, 500), st.data())
def test_rates_by_closed_form(schedule: str, rounds: int, data: st.DataObject) -> None:
    """Cosine from lr to 0 after the last round; × 0.3 at 30, 60 and 90% of the rounds."""
    round = data.draw(st.integers(0, rounds - 1))
    settings = TrainSettings(schedule=schedule, lr=0.5)
    expected = {
        "cosine": 0.5 * math.cos(math.pi * round / rounds / 2) ** 2,
        "constant": 0.5,
        "step": 0.5 * 0.3 ** sum(10 * round >= tenths * rounds for tenths in (3, 6, 9)),
    }
    assert settings.lr_at(round, rounds) == pytest.approx(expected[schedule], rel=1e-9, abs=1e-12)


def test_the_first_part_of_a_longer_schedule() -> None:
    """100 rounds of a cosine over 500 end at cos²(99π/1000) = 0.906 of the rate."""
    longer = TrainSettings(schedule="cosine", lr=1.0, schedule_rounds=500)
    assert [longer.lr_at(round, 100) for round in (0, 99)] == pytest.approx([1.0, 0.9064], abs=1e-4)
    # A run that is longer than its schedule ends at rate 0, and does not rise again.
    shorter = TrainSettings(schedule="cosine", lr=1.0, schedule_rounds=10)
    assert [shorter.lr_at(round, 100) for round in (5, 10, 15)] == pytest.approx([0.5, 0, 0])
    steps = TrainSettings(schedule="step", lr=1.0, schedule_rounds=500, step_factor=0.09)
    assert [steps.lr_at(round, 100) for round in (99, 149, 150, 300, 450)] == pytest.approx(
        [1, 1, 0.09, 0.0081, 0.000729]
    )


def test_a_step_is_proportional_to_the_learning_rate() -> None:
    """One plain SGD step from the same weights: twice the rate moves every weight twice as far;
    rate 0, nowhere.
    """
    moved = []
    for lr in (0.0, 0.01, 0.02):
        trainer = make_trainer("simclr", {"momentum": 0, "weight_decay": 0, "batch": 6})
        row = trainer.method.parameter_row(trainer.method.online)
        before = row.clone()
        trainer.fit(task(random_pixels(6), lr=lr), Watched(), {})
        moved.append(row - before)
    assert not moved[0].any()
    assert moved[1].norm() > 1e-4
    torch.testing.assert_close(moved[2], 2 * moved[1], rtol=1e-3, atol=1e-7)


# -- the step --


class Ordinary(nn.Module):
    """BYOL in plain torch: ordinary layers, one pass for each view, no flat row."""

    def __init__(self) -> None:
        super().__init__()
        convs = [nn.Conv2d(i, o, 3, 2, 1, bias=False) for i, o in ((3, 4), (4, 6))]
        layers = [
            nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU()) for conv in convs
        ]
        self.backbone = nn.Module()
        self.backbone.layers = nn.ModuleList(layers)
        self.projector, self.predictor = (
            nn.Sequential(nn.Linear(i, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5))
            for i in (24, 5)
        )
        self.target = nn.ModuleDict(
            {k: copy.deepcopy(getattr(self, k)) for k in ("backbone", "projector")}
        )

    def project(self, backbone: nn.Module, projector: nn.Module, x: Tensor) -> Tensor:
        for layer in backbone.layers:
            x = layer(x)
        return projector(F.adaptive_avg_pool2d(x, 2).flatten(1))

    def loss(self, one: Tensor, two: Tensor) -> Tensor:
        total = torch.zeros(())
        views = [one, two]
        online = [self.predictor(self.project(self.backbone, self.projector, v)) for v in views]
        with torch.no_grad():
            keys = [
                self.project(self.target["backbone"], self.target["projector"], v) for v in views
            ]
        for p, t in ((online[0], keys[1]), (online[1], keys[0])):
            total = total + (2 - 2 * F.cosine_similarity(p, t)).mean()
        return total

    @torch.no_grad()
    def move_target(self, momentum: float) -> None:
        for part in ("backbone", "projector"):
            pairs = zip(
                self.target[part].parameters(), getattr(self, part).parameters(), strict=True
            )
            for mine, theirs in pairs:
                mine.mul_(momentum).add_(theirs, alpha=1 - momentum)


@pytest.mark.parametrize("decay_norms", [True, False])
def test_a_fit_equals_torch_optim_on_an_ordinary_module(decay_norms: bool) -> None:
    """Five steps on the same views: weights, running statistics, the target and every batch counter
    agree.

    The optimizer is SGD: Adam divides by the size of the gradient, and that of a bias before a
    BatchNorm is rounding noise.
    """
    trainer = make_trainer("byol", {"weight_decay": 0.1, "decay_norms": decay_norms}, momentum=0.9)
    trainer.method.init_local_parts(torch.Generator())
    plain = Ordinary()
    plain.load_state_dict({k: v.clone() for k, v in trainer.method.state.tensors().items()})
    watched = Watched()
    metrics = trainer.fit(task(random_pixels(5 * 8), lr=0.02), watched, {})
    learned = [p for name, p in plain.named_parameters() if not name.startswith("target")]
    decays = [0.1 if decay_norms or p.ndim > 1 else 0.0 for p in learned]
    groups = [
        {"params": [p], "weight_decay": decay} for p, decay in zip(learned, decays, strict=True)
    ]
    oracle = torch.optim.SGD(groups, 0.02, momentum=0.9)
    losses = []
    for batch in watched.batches:
        oracle.zero_grad()
        loss = plain.loss(*batch.views[0])
        loss.backward()
        oracle.step()
        plain.move_target(0.9)
        losses.append(loss.item())
    assert metrics.loss == pytest.approx(sum(losses) / 5, rel=1e-4)
    ours = trainer.method.state.tensors()
    theirs = plain.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(
            tensor, theirs[name], rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
        )
    assert not torch.allclose(
        ours["projector.0.weight"], make_trainer("byol").method.projector[0].weight
    )


# -- before an epoch --


class Counting(METHODS["simclr"]):  # type: ignore[misc]
    """SimCLR that embeds its images before every epoch and gets the result in every step."""

    Settings = type("CountingSettings", (METHODS["simclr"].Settings,), {})

    def before_epoch(self, embed: Callable[[], Tensor]) -> dict[str, Tensor]:
        self.looks = [*getattr(self, "looks", []), embed()]
        self.training_seen = self.training
        return {"epoch": torch.tensor(len(self.looks)), "features": self.looks[-1]}

    def loss(self, out: Output, constants: Constants) -> Tensor:
        self.seen_constants = [*getattr(self, "seen_constants", []), constants]
        return super().loss(out, constants)


def test_constants_of_before_epoch_reach_the_loss() -> None:
    """Two epochs of three steps; features are of the clean images, under the weights the epoch
    begins with.
    """
    settings = TrainSettings(batch=8, epochs=2)
    images = random_pixels(24)
    method = Counting.Settings(hidden=6, dim=5).build(make_trainer("simclr").method.backbone, 8)
    trainer = Trainer(method, settings)
    watched = Watched()
    begun = method.state.clone()
    trainer.fit(task(images), watched, {"mine": torch.tensor(7)})
    assert [int(constants["epoch"]) for constants in method.seen_constants] == [1, 1, 1, 2, 2, 2]
    assert all(int(constants["mine"]) == 7 for constants in method.seen_constants)
    assert all(
        constants["features"] is method.looks[i // 3]
        for i, constants in enumerate(method.seen_constants)
    )
    assert method.training_seen
    assert not torch.allclose(*method.looks)
    method.state.load(begun)
    method.eval()
    with torch.no_grad():
        torch.testing.assert_close(method.looks[0], method.encode(method.clean(images)).h)


def test_a_method_without_before_epoch_needs_no_extra_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Trainer, "embed", lambda *_: pytest.fail("images were embedded"))
    assert make_trainer("simclr").fit(task(random_pixels(8)), Watched(), {}).steps == 1


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["simclr", "byol", "mocov2"])
def test_measuring_is_a_step_that_changes_nothing(name: str, training: bool) -> None:
    """Objectives get the batch, views, draws and output of a first step, and return the same
    loss.
    """
    seen: list[tuple[Tensor, ...]] = []

    def draw(n: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"own": torch.rand(n, generator=generator)}

    def objective(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        seen.append((batch.index, *batch.views, batch.draws["own"], out.z.detach(), constants["x"]))
        return method.loss(out, constants)

    def double(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        return 2 * objective(method, batch, out, constants)

    trainer = make_trainer(name, {"batch": 8})
    constants = {"x": torch.ones(3)}
    method = trainer.method
    method.init_local_parts(torch.Generator().manual_seed(0))
    method.train(training)
    before = method.state.clone()
    values = trainer.measure(
        task(random_pixels(8))._replace(draw=draw), constants, objective, double
    )
    assert torch.equal(method.state.floats, before.floats)
    assert torch.equal(method.state.counts, before.counts)
    assert {module.training for module in method.modules()} == {training}
    assert method.uncounted_batches == 0
    stepped = trainer.fit(task(random_pixels(8))._replace(draw=draw), objective, constants)
    assert values == [stepped.loss, 2 * stepped.loss]
    for measured, again, trained in zip(*seen, strict=True):
        assert torch.equal(measured, trained)
        assert torch.equal(measured, again)


def test_a_failed_measurement_does_not_change_the_method() -> None:
    def fail(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        raise RuntimeError("no")

    trainer = make_trainer("byol")
    before = trainer.method.eval().state.clone()
    with pytest.raises(RuntimeError, match="no"):
        trainer.measure(task(random_pixels(9)), {}, fail)
    assert torch.equal(trainer.method.state.floats, before.floats)
    assert not trainer.method.training


@pytest.mark.parametrize("batch", [1, 4, 100])
@pytest.mark.parametrize("training", [True, False])
def test_embedding_changes_nothing(training: bool, batch: int) -> None:
    trainer = make_trainer("byol")
    images = random_pixels(9)
    method = trainer.method.train(training)
    before = method.state.clone()
    found = {what: trainer.embed(images, what, batch) for what in ("h", "z", "p")}
    assert {module.training for module in method.modules()} == {training}
    assert torch.equal(method.state.floats, before.floats)
    assert torch.equal(method.state.counts, before.counts)
    assert not found["h"].requires_grad
    method.eval()
    with torch.no_grad():
        expected = method.encode(method.clean(images))
    for what, features in found.items():
        torch.testing.assert_close(features, getattr(expected, what))


# -- clients that trained before --


def _round(
    trainer: Trainer, name: str, images: Tensor, message: Tree
) -> tuple[Tensor, Tensor, Metrics]:
    method = trainer.method
    labels = torch.arange(len(images)) % 5
    client = make_client(trainer, images, id=name, labels=lambda: labels, seed=3, lr=0.05)
    method.state.load(message["model"])  # type: ignore[arg-type]
    method.init_local_parts(client.generator("fresh"))
    metrics = client.train(Watched(), {})
    return method.state.floats.clone(), method.state.counts.clone(), metrics


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", EVERY)
def test_results_do_not_depend_on_clients_that_trained_before(name: str, optimizer: str) -> None:
    settings = {"optimizer": optimizer, "epochs": 2}
    used = make_trainer(name, settings)
    new = make_trainer(name, settings)
    message = {"model": new.method.state.pick(new.method.online)}
    _round(used, "other", random_pixels(21, 1), message)
    with pytest.raises(
        ClientError
    ):  # another client, whose weights, statistics and queue end as NaN
        used.fit(task(random_pixels(16, 2), lr=math.nan), Watched(), {})
    used.method.eval()
    floats, counts, metrics = _round(used, "me", random_pixels(17, 3), message)
    expected_floats, expected_counts, expected = _round(new, "me", random_pixels(17, 3), message)
    assert torch.equal(floats, expected_floats)
    assert torch.equal(counts, expected_counts)
    assert metrics._replace(seconds=0) == expected._replace(seconds=0)


# -- resolved settings --


def test_resolved_for_a_device() -> None:
    cpu = torch.device("cpu")
    cuda = torch.device("cuda")
    assert [resolve_precision("auto", d) for d in (cpu, cuda)] == ["fp32", "bf16"]
    assert [resolve_precision(p, d) for p in ("fp32", "bf16") for d in (cpu, cuda)] == [
        "fp32",
        "fp32",
        "bf16",
        "bf16",
    ]
    assert [resolve_mode("auto", d) for d in (cpu, cuda)] == ["eager", "captured"]
    with raises(ConfigError):
        resolve_mode("captured", cpu)


def test_batch_counters_count_every_pass_of_a_step() -> None:
    """Two views and one extra pass over the clean images, four steps: (2 + 1)·4 = 12 batches."""

    def twice(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        return method.loss(out, constants) + 0 * method.encode(method.clean(batch.images)).h.sum()

    trainer = make_trainer("byol")
    task = TrainingTask(
        random_pixels(32), None, torch.Generator().manual_seed(0), 0.1, 0.0, threading.Event()
    )
    trainer.fit(task, twice, {})
    counters = trainer.method.state.pick(("backbone",), ("counter",)).counts
    assert counters.tolist() == [12] * len(counters)


def test_a_parameter_that_does_not_train_is_refused() -> None:
    """Its part of the gradient row would never be written, and weight decay would move it."""
    trainer = make_trainer("simclr")
    next(trainer.method.backbone.parameters()).requires_grad_(False)
    with pytest.raises(TypeError, match="has requires_grad=False, but it is in a trained part"):
        Trainer(trainer.method, trainer.settings)
