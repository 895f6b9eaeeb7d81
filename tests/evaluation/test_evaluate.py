"""Evaluation: the exported backbone is the trained one, and all probes use the same features."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import pytest
import torch
from error_messages import raises
from factories import make_experiment
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedssl import nets
from fedssl.core.console import Notify, ShowStep
from fedssl.core.errors import ConfigError
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.data import Dataset, Images
from fedssl.evaluation import evaluate
from fedssl.evaluation.evaluate import Evaluation
from fedssl.evaluation.labelled_images import AUGMENTED, FROZEN, HEAD_ONLY
from fedssl.evaluation.missing_labels import missing_labels
from fedssl.evaluation.probe_settings import with_probe_settings
from fedssl.evaluation.score import Score, percent
from fedssl.experiment import federation_setup
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.trained_backbone import TrainedBackbones
from fedssl.probes import LINEAR, Protocol

CPU = torch.device("cpu")


def experiment(**probe: Any) -> Experiment:
    return make_experiment(
        clients=5,
        data={"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]},
        probe={"epochs": 30, **probe},
    )


def images(n: int, seed: int, labelled: bool = True) -> Images:
    """Return images of three classes, each bright in another channel."""
    labels = torch.arange(n) % 3
    noise = torch.randint(100, (n, 3, 8, 8), generator=torch.Generator().manual_seed(seed))
    noise[torch.arange(n), labels] += 150
    return Images(noise.to(torch.uint8), labels if labelled else None)


DATA = Dataset(images(60, 0), images(30, 1))


def state(seed: int = 0) -> State:
    changed = experiment().with_changes({"seed": seed})
    return federation_setup.build_method(changed, (3, 8, 8), CPU).state


def test_features_are_those_of_the_method_itself() -> None:
    method = federation_setup.build_method(experiment(), (3, 8, 8), CPU)
    method.state.view(method.state.layout.entries[0]).mul_(1.5)
    method.eval()
    with torch.no_grad():
        expected = method.encode(method.clean(DATA.train.pixels)).h
    random = torch.get_rng_state()
    got = Evaluation(experiment(), DATA, CPU).features(method.state, DATA.train.pixels)
    assert torch.equal(torch.get_rng_state(), random)
    torch.testing.assert_close(got, expected)


def test_a_backbone_has_a_copy_of_the_weights() -> None:
    """Filled from a model, in eval mode, and sharing no memory with it."""
    model = state()
    backbone = TrainedBackbones(experiment(), 3).module(model)
    assert not backbone.training
    expected = {
        e.name.removeprefix("backbone."): model.view(e)
        for e in model.layout.entries
        if e.part == "backbone"
    }
    tensors = backbone.state_dict()
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())
    before = tensors["layers.0.0.weight"].clone()
    model.floats.zero_()
    assert torch.equal(backbone.state_dict()["layers.0.0.weight"], before)


def test_every_probe_for_every_model() -> None:
    scores = Evaluation(experiment(), DATA, CPU).measure(
        {"x": state(0), "y": state(1)}, ("knn", "linear")
    )
    assert {probe: list(score) for probe, score in scores.items()} == {
        "knn": ["x", "y"],
        "linear": ["x", "y"],
    }
    assert all(value > 90 for score in scores.values() for value in score.values())
    again = Evaluation(experiment(), DATA, CPU).measure({"x": state(0)}, ("linear",))
    assert again["linear"]["x"] == scores["linear"]["x"]


def test_fewer_labels_give_a_worse_linear_probe() -> None:
    """One image of each class against all images."""
    evaluation = Evaluation(experiment(labels=3, epochs=1), DATA, CPU)
    all_labels = Evaluation(experiment(), DATA, CPU)
    one = evaluation.measure({"x": state()}, ("linear",))["linear"].mean
    assert one < all_labels.measure({"x": state()}, ("linear",))["linear"].mean


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            Dataset(images(6, 0)),
            r"no test images: .* `data\.holdout=N` to measure on N of the 6 labelled training images",
        ),
        (Dataset(images(6, 0, False)), "neither test images nor labels"),
        (
            Dataset(images(6, 0, False), images(3, 1)),
            "but no class has more than one test image: add more",
        ),
        (
            Dataset(images(6, 0, False), Images(images(4, 1).pixels, torch.full((4,), 2))),
            "the 4 labelled test images are of one class only: two are needed",
        ),
        (Dataset(images(6, 0), images(6, 1, False)), "the 6 test images here have no labels"),
        (
            Dataset(images(6, 0, False), images(6, 1, False)),
            "the 6 test images here have no labels",
        ),
    ],
)
def test_without_labels_there_is_nothing_to_measure(data: Dataset, sentence: str) -> None:
    evaluation = Evaluation(experiment(), data, CPU)
    assert not evaluation.images.possible
    with pytest.raises(ConfigError, match=sentence):
        evaluation.measure({"x": state()}, ("knn",))
    assert evaluation.images.note is None


def test_the_advice_on_missing_test_images_depends_on_the_data_set() -> None:
    """The images of a run cannot be set aside any more; those of other data sets can, by --set."""
    data = Dataset(images(6, 0))
    assert "or start a new run with `data.holdout=N`" in (missing_labels(data) or "")
    assert "or set `data.holdout=N`" in (missing_labels(data, trained_on=False) or "")


def test_probes_of_clients_need_their_labels() -> None:
    halved = Dataset(images(6, 0, False), images(6, 1))
    assert missing_labels(halved, "linear") is None
    assert "needs the classes of each client's images" in (
        missing_labels(halved, "per-client") or ""
    )
    assert "labels of each client's images" in (missing_labels(halved, "collaborative") or "")
    assert missing_labels(DATA, "collaborative") is None


@pytest.mark.parametrize(
    ("probe", "key", "uses"),
    [
        ("knn", "labels", "its settings: k, temperature"),
        ("linear", "k", "its settings: labels, protocol, epochs, lr, batch, penalty, solver"),
        ("semi", "penalty", "its settings: labels, protocol, epochs, lr, batch, frozen"),
        ("collaborative", "frozen", "its settings: labels, protocol, epochs, lr, batch, head"),
        ("classifier", "labels", "its settings: none"),
        (
            "per-client",
            "every",
            "its settings: labels, protocol, epochs, lr, batch, penalty, solver",
        ),
    ],
)
def test_settings_that_a_probe_does_not_use_are_refused(probe: str, key: str, uses: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_probe_settings(experiment(), probe, {key: 1})
    assert str(refused.value) == f'probe "{probe}" has no setting "{key}"; {uses}'


def test_an_experiment_may_have_settings_of_other_probes() -> None:
    """Only settings of this call are checked: [probe] has the settings of several probes."""
    whole = experiment(labels=3, penalty=0.1, k=7)
    assert with_probe_settings(whole, "knn", {"k": 4}).probe.k == 4
    assert with_probe_settings(whole, "linear", {"epochs": 2}).probe.labels == 3


@pytest.mark.parametrize("probe", ["linear", "per-client"])
@pytest.mark.parametrize(
    ("key", "value"), [("epochs", 5), ("lr", 0.1), ("batch", 8), ("protocol", "ccl")]
)
def test_an_exact_minimum_is_not_trained(probe: str, key: str, value: object) -> None:
    """Settings that the solver would ignore are refused; those of the experiment are not."""
    sentence = rf'^solver = "lbfgs" does not use {key}: leave that out'
    with pytest.raises(ConfigError, match=sentence):
        with_probe_settings(experiment(), probe, {"solver": "lbfgs", key: value})
    exact = with_probe_settings(experiment(), probe, {"solver": "lbfgs"})
    assert exact.probe.solver == "lbfgs"
    with pytest.raises(ConfigError, match=sentence):
        with_probe_settings(exact, probe, {key: value})
    assert (
        with_probe_settings(exact, probe, {"solver": "protocol", key: value}).probe.solver
        == "protocol"
    )
    semi = with_probe_settings(exact, "semi", {key: value}).probe  # a probe without a solver
    assert getattr(semi, key) == value


def test_a_note_if_settings_ask_for_more_images_than_there_are() -> None:
    """Of 60 labelled images, 61 neighbours cannot vote, and 61 labels cannot be learned from."""
    asked = Evaluation(experiment(k=61, labels=61, epochs=1), DATA, CPU).measure(
        {"x": state()}, ("knn", "linear")
    )
    assert asked["knn"].note == "k = 61 is more than the 60 labelled images: all of them vote"
    assert (
        asked["linear"].note
        == "labels = 61 is more than the 60 labelled images: all of them are used"
    )
    enough = Evaluation(experiment(k=60, labels=60, epochs=1), DATA, CPU).measure(
        {"x": state()}, ("knn", "linear")
    )
    assert [score.note for score in enough.values()] == [None, None]


def test_how_many_images_were_learned_from_and_measured_on() -> None:
    """60 images vote in kNN; a tenth, 6, trains `linear`; 9 train `semi`; 30 are test images."""
    evaluation = Evaluation(experiment(labels=0.1, epochs=1), DATA, CPU)
    scores = evaluation.measure({"x": state(), "y": state(1)}, ("knn", "linear"))
    assert {probe: (score.labelled, score.tested) for probe, score in scores.items()} == {
        "knn": (60, 30),
        "linear": (6, 30),
    }
    semi = Evaluation(
        with_probe_settings(experiment(labels=0.1), "semi", {"epochs": 1, "labels": 9}), DATA, CPU
    )
    assert semi.measure({"x": state()}, ("semi",))["semi"].labelled == 9


def test_the_images_of_probes_are_described() -> None:
    """A tenth of 60 training images trains `linear`; without labels, half of the test images do."""
    labelled = Evaluation(experiment(labels=0.1), DATA, CPU).images
    assert labelled.description(("knn", "linear")) == (
        "probes learned from 60 labelled training images (linear: 6 of them) and were tested on 30 "
        "test images"
    )
    unlabelled = Dataset(images(6, 0, labelled=False), images(31, 1))
    halved = Evaluation(experiment(), unlabelled, CPU).images
    assert halved.description(("knn", "linear")) == (
        "probes learned from 15 of the 31 labelled test images and were tested on the other 16: "
        "the training images have no labels"
    )


def test_one_labelled_image_is_too_few_to_fine_tune_with() -> None:
    """The default is 1% of 60: batch normalisation has no statistics of one image."""
    semi = Evaluation(with_probe_settings(experiment(), "semi", {}), DATA, CPU)
    with raises(ConfigError):
        semi.measure({"x": state()}, ("semi",))


def _numbered(labels: list[int]) -> Images:
    """Return images whose pixels are the number of the image."""
    pixels = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 8, 8)
    return Images(pixels, torch.tensor(labels))


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60))
def test_halves_of_the_test_images_where_training_images_have_no_labels(labels: list[int]) -> None:
    """Every image is in one half; both have as many of each class, except for an odd one."""
    assume(1 < len(set(labels)) < len(labels))  # others are errors
    data = Dataset(images(6, 0, labelled=False), _numbered(labels))
    evaluation = Evaluation(experiment(), data, CPU)
    assert evaluation.images.possible
    assert evaluation.images.note is not None
    halves = evaluation.images.train, evaluation.images.test
    numbers = [half.pixels[:, 0, 0, 0].tolist() for half in halves]
    assert sorted(numbers[0] + numbers[1]) == list(range(len(labels)))
    assert [len(half) for half in halves] == [len(labels) // 2, (len(labels) + 1) // 2]
    for half, mine in zip(halves, numbers, strict=True):
        assert half.labels.tolist() == [labels[k] for k in mine]
    known, unknown = (torch.bincount(half.labels, minlength=5) for half in halves)
    assert int((known - unknown).abs().max()) <= 1
    other = Evaluation(experiment().with_changes({"seed": 1}), data, CPU).images
    # Runs of different seeds are measured on the same images.
    assert torch.equal(other.train.pixels, halves[0].pixels)


def test_labelled_training_images_leave_the_test_images_whole() -> None:
    evaluation = Evaluation(experiment(), DATA, CPU)
    assert (evaluation.images.train, evaluation.images.test) == (DATA.train, DATA.test)
    assert evaluation.images.note is None


def test_one_half_is_learned_from_and_the_other_measured_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluation = Evaluation(experiment(), Dataset(images(6, 0, labelled=False), images(31, 1)), CPU)
    scores = evaluation.measure({"x": state()}, ("knn", "linear"))
    assert all(score.mean > 90 for score in scores.values())
    seen = []
    monkeypatch.setattr(
        evaluation,
        "_knn",
        lambda subject: seen.append(subject) or torch.zeros(16, dtype=torch.int64),
    )
    score = evaluation.measure({"x": state()}, ("knn",))["knn"]
    known = evaluation.images.train
    unknown = evaluation.images.test
    (subject,) = seen
    assert torch.equal(subject.train.labels, known.labels)
    torch.testing.assert_close(subject.train.features, evaluation.features(state(), known.pixels))
    torch.testing.assert_close(subject.test, evaluation.features(state(), unknown.pixels))
    assert [row[0] for row in score.confusion["x"]] == unknown.labels.bincount().tolist()


def test_an_unknown_probe() -> None:
    with raises(ConfigError):
        Evaluation(experiment(), DATA, CPU).measure({"x": state()}, ("lineer",))


def test_a_model_of_several_names_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = Evaluation(experiment(), DATA, CPU)
    seen = []
    compute = evaluation.features

    def features(model: State, pixels: Tensor) -> Tensor:
        seen.append(model)
        return compute(model, pixels)

    monkeypatch.setattr(evaluation, "features", features)
    shared = state(0)
    other = state(1)
    score = evaluation.measure(
        {"a": shared, "b": other, "c": shared, "all": shared}, ("knn",), frozenset({"all"})
    )["knn"]
    assert len(seen) == 2 * 2  # training and test images of two models
    assert score["a"] == score["c"] == score["all"]
    assert score.excluded == {"all"}


class LazyModels(Mapping[str, State]):
    """A hundred models of one number each, built on lookup; `most` existed at the same time."""

    def __init__(self) -> None:
        self.alive: WeakSet[State] = WeakSet()
        self.most = 0
        self.rows = torch.arange(100.0).split(1)
        self.layout = Layout.of([Entry("backbone.w", (1,), "weight")])
        self.counts = torch.zeros(0, dtype=torch.int64)

    def __getitem__(self, name: str) -> State:
        model = State(self.layout, self.rows[int(name)], self.counts)
        self.alive.add(model)
        self.most = max(self.most, len(self.alive))
        return model

    def __iter__(self) -> Iterator[str]:
        return map(str, range(100))

    def __len__(self) -> int:
        return 100


def test_models_built_one_after_the_other_are_not_confused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is freed for the next ones, which may get its address; its result is freed with it."""
    evaluation = Evaluation(experiment(), DATA, CPU)
    models = LazyModels()
    monkeypatch.setattr(evaluation, "features", lambda state, pixels: state.floats)
    # Model k is right about the first k of 30 images, from 30 on about all.
    right = torch.arange(30) % 3
    monkeypatch.setattr(
        evaluation,
        "_knn",
        lambda subject: torch.where(torch.arange(30) < subject.test, right, (right + 1) % 3),
    )
    expected = {name: round(100 * min(int(name), 30) / 30, 4) for name in models}
    assert evaluation.measure(models, ("knn",))["knn"] == expected
    assert models.most <= 2


def test_scores_apart_are_no_part_of_the_mean() -> None:
    score = Score(a=10.0, b=20.0, x=60.0, y=70.0)
    assert (score.mean, score.excluded_mean) == (40.0, None)
    score.excluded = frozenset({"y", "x"})
    assert (score.mean, score.excluded_mean) == (15.0, 65.0)
    assert score.std == 7.0711
    assert score.summary() == {
        "mean": 15.0,
        "std": score.std,
        "models": dict(score),
        "excluded": ["x", "y"],
    }


def test_confusion_by_hand() -> None:
    """Classes 0 0 0 1 1 predicted as 0 0 1 1 3, of four.

    Rows are (2 1 0 0) and (0 1 0 1); 3 of 5 are right, by class 2/3 and 1/2.
    """
    score = Score()
    score.add("x", torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 3]), 4)
    assert score.confusion == {"x": [[2, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]}
    assert score == {"x": 60.0}
    assert score.per_class == {"x": [66.6667, 50.0, None, None]}
    assert json.loads(json.dumps(score.details())) == {
        "mean": score["x"],
        "note": None,
        "labelled": 0,
        "tested": 5,
        "models": dict(score),
        "per_class": score.per_class,
        "confusion": score.confusion,
    }


def test_accuracies_are_those_of_the_confusion_matrix() -> None:
    """Every test image counts once, in the row of its class; named classes without images too."""
    test = images(30, 1)
    named = Images(test.pixels, test.labels, ("red", "green", "blue", "none"))
    scores = Evaluation(experiment(epochs=2), Dataset(images(60, 0), named), CPU).measure(
        {"x": state(0), "y": state(1)}, ("knn", "linear")
    )
    for score in scores.values():
        for name, rows in score.confusion.items():
            assert [sum(row) for row in rows] == [10, 10, 10, 0]
            assert score[name] == percent(sum(rows[k][k] for k in range(4)), 30)


def test_a_share_of_the_labels() -> None:
    """A tenth of 60 is 6; the probe learns from the same images then."""
    found = [
        Evaluation(experiment(labels=some, epochs=3), DATA, CPU).measure(
            {"x": state()}, ("linear",)
        )["linear"]
        for some in (0.1, 6, 12)
    ]
    assert found[0].confusion == found[1].confusion
    assert found[0].confusion != found[2].confusion


def test_percentages_are_rounded() -> None:
    """In floating point 100 · (817 / 1000) = 81.69999999999999; thirds need rounding too."""
    score = Score()
    score.add(
        "a", torch.zeros(1000).long(), torch.cat([torch.zeros(817), torch.ones(183)]).long(), 2
    )
    assert score == {"a": 81.7}
    assert percent(1, 1_000_000) == 0.0001
    thirds = Score(a=percent(1, 3), b=percent(1, 3), c=percent(2, 3))
    thirds.excluded = frozenset({"b", "c"})
    assert dict(thirds) == {"a": 33.3333, "b": 33.3333, "c": 66.6667}
    assert (thirds.excluded_mean, Score(thirds).mean) == (50.0, 44.4444)


def test_scores() -> None:
    score = Score(a=10.0, b=20.0, c=60.0)
    assert (score.mean, score.std) == (30.0, 26.4575)
    assert score.summary() == {
        "mean": 30.0,
        "std": score.std,
        "models": {"a": 10.0, "b": 20.0, "c": 60.0},
    }
    assert Score(a=5.0).summary() == {"mean": 5.0}
    assert Score(a=5.0).std == 0


def test_a_classifier_is_measured_as_it_was_trained() -> None:
    """The logits of single images in eval mode; the run's seed draws other weights."""
    supervised = {"name": "supervised", "backbone": "cnn", "classes": 3}
    chosen = experiment().with_changes({"method": supervised})
    trained = federation_setup.build_method(chosen.with_changes({"seed": 9}), (3, 8, 8), CPU).eval()
    assert DATA.test is not None
    pixels = DATA.test.pixels
    labels = DATA.test.labels
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]))
    normalised = (pixels.float() / 255 - mean) / std
    with torch.no_grad():
        predictions = [
            int(trained.projector(trained.backbone(image[None])).argmax()) for image in normalised
        ]
    score = Evaluation(chosen, DATA, CPU).measure({"global": trained.state}, ("classifier",))[
        "classifier"
    ]
    assert score["global"] == pytest.approx(
        100 * sum(a == b for a, b in zip(predictions, labels.tolist(), strict=True)) / 30
    )
    assert len(set(predictions)) > 1
    with raises(ConfigError):
        Evaluation(experiment(), DATA, CPU).measure({"global": state()}, ("classifier",))


def test_semi_passes_frozen_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One labelled image is then enough: no layer of a head needs the statistics of several."""
    asked = []

    def tuned(backbone: nn.Module, *_: Any, frozen: bool, **__: Any) -> nn.Module:
        asked.append(frozen)
        return nn.Sequential(backbone, nn.Linear(512, 3)).eval()

    monkeypatch.setattr("fedssl.evaluation.evaluate.fine_tune", tuned)
    for frozen in (False, True):
        chosen = with_probe_settings(
            experiment(), "semi", {"labels": 0.01 if frozen else 0.5, "frozen": frozen}
        )
        scores = Evaluation(chosen, DATA, CPU).measure({"x": state()}, ("semi", "knn"))
        assert (FROZEN in str(scores["semi"].note)) is frozen
        assert FROZEN not in str(scores["knn"].note)
    assert asked == [False, True]


@pytest.mark.parametrize(
    ("settings", "lr", "head_only", "training_mode"),
    [
        ({}, 1e-3, False, None),
        ({"lr": 1e-4}, 1e-4, False, None),
        ({"protocol": "easyfl"}, 1e-3, True, None),
        ({"protocol": "easyfl-literal"}, 1e-3, True, 1),
    ],
)
def test_semi_passes_the_protocol_on(
    settings: Mapping[str, Any],
    lr: float,
    head_only: bool,
    training_mode: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A learning rate applies to the whole model; the epochs are those of the protocol."""
    asked: list[Protocol] = []

    def tuned(backbone: nn.Module, *_: Any, protocol: Protocol, **__: Any) -> nn.Module:
        asked.append(protocol)
        return nn.Sequential(backbone, nn.Linear(512, 3)).eval()

    monkeypatch.setattr("fedssl.evaluation.evaluate.fine_tune", tuned)
    chosen = with_probe_settings(experiment(), "semi", {"labels": 0.5, **settings})
    scores = Evaluation(chosen, DATA, CPU).measure({"x": state()}, ("semi", "knn"))
    assert [protocol[:4] for protocol in asked] == [("adam", lr, 100, 128)]
    assert asked[0].head_lr is None
    assert (asked[0].head_only, asked[0].training_mode) == (head_only, training_mode)
    assert (HEAD_ONLY in str(scores["semi"].note)) is head_only
    assert HEAD_ONLY not in str(scores["knn"].note)


def test_the_head_of_easyfl_needs_two_images() -> None:
    """Its BatchNorm needs the statistics of several images even if features are frozen."""
    settings = {"labels": 0.01, "frozen": True, "protocol": "easyfl"}
    chosen = with_probe_settings(experiment(), "semi", settings)
    with raises(ConfigError):
        Evaluation(chosen, DATA, CPU).measure({"x": state()}, ("semi",))


def test_a_protocol_of_code_measures_every_probe() -> None:
    """Few labels with EasyFL's head; images in order are separated by the linear probe too."""
    chosen = with_probe_settings(experiment(), "semi", {"protocol": "easyfl", "labels": 0.5})
    scores = Evaluation(chosen, DATA, CPU).measure({"x": state()}, ("semi", "linear"))
    assert all(score["x"] > 90 for score in scores.values())


@pytest.mark.parametrize(
    ("method", "size"), [("simclr", 8), ("byol", 8), ("supervised", 8), ("mae", None)]
)
def test_dec_ssl_passes_the_views_of_pre_training_on(
    method: str, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One method in four makes no views: its classifier learns from clean images."""
    asked: list[dict[str, Any]] = []

    def trained(backbone: nets.Backbone, images: Any, *_: Any, **settings: Any) -> nn.Module:
        asked.append({"images": len(images), **settings})
        return nn.Sequential(backbone, nn.Linear(backbone.dim, 3)).eval()

    monkeypatch.setattr(evaluate, "fine_tune", trained)
    changes: dict[str, Any] = {"probe.epochs": None, "method.name": method}
    if method == "mae":
        changes["method.backbone"] = "vit_mini"
    else:
        changes["method.augment.crop"] = [0.37, 0.9]
    if method == "supervised":
        changes["method.classes"] = 3
    settings = {"protocol": "dec-ssl", "labels": 0.5, "penalty": 0.25}
    chosen = with_probe_settings(experiment().with_changes(changes), "linear", settings)
    weights = federation_setup.build_method(chosen, (3, 8, 8), CPU).state
    scores = Evaluation(chosen, DATA, CPU).measure({"x": weights}, ("linear", "knn"))
    (call,) = asked
    assert (call["images"], call["penalty"], call["protocol"]) == (30, 0.25, LINEAR["dec-ssl"])
    group = call["views"]
    assert (group and group.size, group and group.augment.crop) == (
        size,
        (0.37, 0.9) if size else None,
    )
    assert scores["linear"].note == AUGMENTED
    assert AUGMENTED not in str(scores["knn"].note)


def test_dec_ssl_does_not_use_the_statistics_of_pre_training() -> None:
    """200 batches of the first epoch leave 0.9²⁰⁰ of them, which is nothing: 7e-10.

    With features of clean images, wrong statistics make the classes hard to separate.
    """
    data = Dataset(images(400, 0), images(30, 1))
    ruined = state()
    for entry in ruined.layout.entries:
        if entry.name.endswith("running_var"):
            ruined.view(entry).fill_(1e6)
    models = {"trained": state(), "ruined": ruined}
    scores = {}
    for protocol in ("dec-ssl", "fedema"):
        chosen = experiment(protocol=protocol, batch=2, epochs=2, lr=0.001)
        chosen = chosen.with_changes({"method.augment": {"jitter": [0, 0, 0, 0], "gray": 0.0}})
        scores[protocol] = Evaluation(chosen, data, CPU).measure(models, ("linear",))["linear"]
    assert scores["dec-ssl"]["trained"] > 90
    assert scores["dec-ssl"]["ruined"] == scores["dec-ssl"]["trained"]
    assert scores["fedema"]["trained"] > 90
    assert scores["fedema"]["ruined"] < 70


def test_dec_ssl_needs_two_images_and_lbfgs_ignores_it() -> None:
    chosen = with_probe_settings(experiment(), "linear", {"protocol": "dec-ssl", "labels": 1})
    assert Evaluation(chosen, DATA, CPU).images.learned_from("linear") == 60
    few = with_probe_settings(experiment(), "linear", {"protocol": "dec-ssl", "labels": 0.01})
    with raises(ConfigError):
        Evaluation(few, DATA, CPU).measure({"x": state()}, ("linear",))
    exact = experiment(protocol="dec-ssl", solver="lbfgs")
    score = Evaluation(exact, DATA, CPU).measure({"x": state()}, ("linear",))["linear"]
    plain = Evaluation(experiment(solver="lbfgs"), DATA, CPU).measure({"x": state()}, ("linear",))
    assert score == plain["linear"]
    assert score.note is None


def test_the_steps_of_a_measurement_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with two names is measured once; a probe without fixed features computes none."""
    shown: list[tuple[int, str]] = []

    @contextmanager
    def record(title: str, total: int, notify: Notify) -> Iterator[ShowStep]:
        shown.append((total, title))
        yield lambda finished, step: shown.append((finished, step))

    monkeypatch.setattr(evaluate, "steps", record)
    first = state(0)
    evaluation = Evaluation(experiment(epochs=1, labels=10), DATA, CPU)
    evaluation.measure({"a": first, "b": first, "c": state(1)}, ("knn", "linear"))
    assert shown == [
        (9, "measuring"),
        (0, "model a, features"),
        (1, "model a, knn probe"),
        (2, "model a, linear probe"),
        (6, "model c, features"),
        (7, "model c, knn probe"),
        (8, "model c, linear probe"),
    ]
    shown.clear()
    evaluation.measure({"a": first}, ("semi",))
    assert shown == [(2, "measuring"), (1, "model a, semi probe")]
