"""Measuring a run's models: the probes bound to one experiment's labelled images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedssl import nets
from fedssl.assemble import build_backbone, build_method, left_out, normalisation
from fedssl.data import Dataset, Images
from fedssl.errors import ConfigError, DataError
from fedssl.experiment import Experiment
from fedssl.lacking import lacking
from fedssl.numerics import float32
from fedssl.pixels import Rows
from fedssl.probes import (
    LINEAR,
    USES,
    Labelled,
    ProbeSettings,
    balanced,
    embed,
    fine_tune,
    fine_tuning,
    how_many,
    knn_predict,
    linear_predict,
)
from fedssl.score import Score, confusion
from fedssl.seeds import generator
from fedssl.settings import suggest
from fedssl.tree import State

PROBES = tuple(USES)
HALVED = (
    "the training images have no labels: probes learn from one half of the labelled test images "
    "and are measured on the other"
)
SEEN = "the model has seen the images it is fine-tuned on in pre-training: data.leave_out keeps them from it"
FEW_LABELS = 0.01  # the share that `semi` has where nothing is said


def check_probe(name: str) -> None:
    if name == "transfer":
        raise ConfigError('transfer is a probe on other images: "linear" or "semi" on another data set, --on NAME')
    if name not in PROBES:
        raise ConfigError(f'unknown probe "{name}"{suggest(name, PROBES) or "; known: " + ", ".join(PROBES)}')


FINE_TUNING = ("semi", "collaborative")  # probes that train the whole model
ANEW = {"labels": 0, "epochs": None, "lr": None, "batch": None}


def for_probe(experiment: Experiment, probe: str, settings: Mapping[str, object]) -> Experiment:
    """With settings for one probe, which must be some that it uses; an experiment's own may be any. An experiment's
    labels, epochs, lr and batch are those of its linear probe: where the whole model is fine-tuned, they begin anew."""
    check_probe(probe)
    for key in settings:
        if key in ProbeSettings.model_fields and key not in USES[probe]:
            raise ConfigError(f'probe "{probe}" does not use {key}; it uses {", ".join(USES[probe]) or "no settings"}')
    anew = ANEW if probe in FINE_TUNING else {}
    return experiment.with_changes({f"probe.{key}": value for key, value in (anew | dict(settings)).items()})


class Few(NamedTuple):
    """Labelled images to fine-tune with, on the device, and what share of the training images they are."""

    pixels: Tensor
    labels: Tensor
    share: float
    note: str | None  # what is to be said about them


class Evaluation:
    """Probes for this experiment's data. Features are computed once per model and shared by the probes asked for."""

    def __init__(self, experiment: Experiment, data: Dataset, device: torch.device, seen: bool = True) -> None:
        """`seen`: whether these are the images that models were pre-trained on, but for those that were left out."""
        self.experiment, self.data, self.device, self._seen = experiment, data, device, seen
        self._channels = data.train.image[0]
        self._normalisation = normalisation(experiment, self._channels)
        if data.test is not None and len(data.test) and data.test.image[0] != self._channels:
            raise DataError(f"test images have {data.test.image[0]} channels, training images {self._channels}")
        self.note = HALVED if self.possible and not data.train.labelled else None

    @property
    def possible(self) -> bool:
        """Whether there are labelled test images to measure with, and some to learn from."""
        return lacking(self.data) is None

    def sets(self) -> tuple[Images, Images]:
        """Labelled images that probes learn from, and those they are measured on."""
        if (problem := lacking(self.data, trained_on=self._seen)) is not None:
            raise ConfigError(problem)
        test = self.data.test
        assert test is not None
        if self.data.train.labelled:
            return self.data.train, test
        order = torch.randperm(len(test), generator=generator("halves"))
        order = order[test.labels.cpu()[order].argsort(stable=True)]  # class by class: every other one of each
        return test.select(order[1::2].sort().values), test.select(order[::2].sort().values)

    @cached_property
    def classes(self) -> int:
        known, unknown = self.sets()
        said = getattr(self.experiment.method, "classes", 0)  # a classifier's may be more than there are images of
        return max(said, len(unknown.classes), *(int(images.labels.max()) + 1 for images in (known, unknown)))

    def backbone(self, state: State) -> nets.Backbone:
        with torch.random.fork_rng(devices=[]):  # a new backbone draws weights, here only to be overwritten
            return backbone_of(state, build_backbone(self.experiment, self._channels)).to(self.device)

    @float32()
    def features(self, state: State, pixels: Tensor | Rows) -> Tensor:
        return embed(self.backbone(state), pixels, self._normalisation, self.device)

    @float32()  # whatever training computes in: what is measured must not depend on the kind of GPU
    def measure(
        self, models: Mapping[str, State], probes: tuple[str, ...], apart: frozenset[str] = frozenset()
    ) -> dict[str, Score]:
        """Each probe's accuracy for each model; a model that goes by several names is measured once."""
        for probe in probes:
            check_probe(probe)
        labels = self.sets()[1].labels.to(self.device)
        scores = {probe: Score() for probe in probes}
        # Weak: a client's own model goes when the next one is asked for, and its successor may lie where it lay.
        found: WeakKeyDictionary[State, dict[str, Tensor]] = WeakKeyDictionary()
        for name, state in models.items():
            if state not in found:
                guessed = self._guess(state, probes)
                found[state] = {probe: confusion(labels, guessed[probe], self.classes) for probe in probes}
            for probe in probes:
                scores[probe].add(name, found[state][probe])
        for probe, score in scores.items():
            score.note, score.apart = "; ".join(self.notes(probe)) or None, apart
            score.labelled = self.learned_from(probe)
        return scores

    def learned_from(self, probe: str) -> int:
        """How many labelled images a probe learns from; a classifier, here, from none."""
        if probe == "classifier":
            return 0
        return len(self.few.labels) if probe == "semi" else min(self._asked_for(probe), len(self.sets()[0]))

    def _asked_for(self, probe: str) -> int:
        """How many it would have if there were as many; none asked for, by `labels = 0`, are all."""
        labels, known = self.experiment.probe.labels, len(self.sets()[0])
        return how_many(labels, known) if labels and "labels" in USES[probe] else known

    def notes(self, probe: str) -> list[str]:
        """What is unusual about measuring with a probe."""
        known, k = len(self.sets()[0]), self.experiment.probe.k
        notes = [self.note, self.few.note if probe == "semi" else None]
        if "k" in USES[probe] and k > known:
            notes.append(f"k = {k} is more than the {known} labelled images there are: all of them vote")
        if self._asked_for(probe) > known:
            labels = self.experiment.probe.labels
            notes.append(f"labels = {labels} is more than the {known} labelled images there are: all of them are used")
        return [note for note in notes if note]

    def _guess(self, state: State, probes: tuple[str, ...]) -> dict[str, Tensor]:
        """Each probe's classes (n,) for the images that are measured on."""
        subject = Subject(self, state)
        answers: dict[str, Callable[[Subject], Tensor]] = {
            "knn": self._knn,
            "linear": self._linear,
            "semi": self._semi,
            "classifier": self._classifier,
            "per-client": self._linear,  # what makes it more than that: per_client.py
        }
        return {probe: answers[probe](subject) for probe in probes}

    def _knn(self, subject: Subject) -> Tensor:
        return knn_predict(subject.train, subject.test, self.experiment.probe.k, self.experiment.probe.temperature)

    def _linear(self, subject: Subject) -> Tensor:
        probe, seed, train = self.experiment.probe, self.experiment.seed, subject.train
        if probe.labels:
            count = how_many(probe.labels, len(train.labels))
            some = balanced(train.labels, count, generator(seed, "labelled")).to(self.device)
            train = Labelled(train.features[some], train.labels[some])
        how = LINEAR[probe.protocol].changed(probe.epochs, probe.lr, probe.batch)
        return linear_predict(train, subject.test, how, seed, probe.penalty, probe.solver)

    def _semi(self, subject: Subject) -> Tensor:
        probe, few = self.experiment.probe, self.few
        if len(few.labels) < 2:  # which batch normalisation has no statistics of
            known = len(self.sets()[0])
            raise ConfigError(f"1 of {known} labelled images is too few to fine-tune with: set more with labels")
        how = fine_tuning(probe.protocol, few.share).changed(probe.epochs, probe.lr, probe.batch)
        backbone = self.backbone(subject.state)
        model = fine_tune(
            backbone, few.pixels, few.labels, self.classes, self._normalisation, how, self.experiment.seed
        )
        return embed(model, self.sets()[1].held, self._normalisation, self.device).argmax(1)

    def _classifier(self, subject: Subject) -> Tensor:
        return classified(self.experiment, subject.state, self.sets()[1].held, self.device)

    @cached_property
    def few(self) -> Few:
        """What `semi` learns from: images that were left out of pre-training as far as they go, else any."""
        (known, _), seed = self.sets(), self.experiment.seed
        wanted = how_many(self.experiment.probe.labels or self.experiment.data.leave_out or FEW_LABELS, len(known))
        seen = self._seen and self.data.train.labelled
        left = left_out(self.experiment, self.data) if seen else torch.empty(0)
        pool = known if len(left) < wanted else known.select(left)
        if wanted < len(pool):
            pool = pool.select(balanced(pool.labels, wanted, generator(seed, "labelled")))
        pixels, labels = pool.pixels.to(self.device), pool.labels.to(self.device)
        return Few(pixels, labels, len(pool) / len(known), SEEN if seen and len(left) < wanted else None)


class Subject:
    """One model as probes see it: its features are computed when the first probe asks for them."""

    def __init__(self, evaluation: Evaluation, state: State) -> None:
        self.evaluation, self.state = evaluation, state
        self._known, self._unknown = evaluation.sets()

    @cached_property
    def train(self) -> Labelled:
        """Of the images that probes learn from."""
        features = self.evaluation.features(self.state, self._known.held)
        return Labelled(features, self._known.labels.to(features.device))

    @cached_property
    def test(self) -> Tensor:
        """Features (n, d) of those that are measured on."""
        return self.evaluation.features(self.state, self._unknown.held)


@float32()
@torch.no_grad()
def classified(experiment: Experiment, state: State, images: Rows, device: torch.device) -> Tensor:
    """The classes (n,) that a model says itself, with the layer it was trained with."""
    method = build_method(experiment, images.image, device).eval()
    if not method.classifies:
        name = experiment.to_dict()["method"]["name"]
        raise ConfigError(f'probe "classifier" measures one that the run itself trained; {name} trains none')
    method.state.load(state)
    return torch.cat([method.encode(method.clean(x.to(device))).z.argmax(1) for x in images.chunks(1000)])


def backbone_of(state: State, backbone: nets.Backbone) -> nets.Backbone:
    """The backbone filled with a model's weights, in eval mode."""
    backbone.load_state_dict(state.pick(("backbone",)).without_prefix("backbone").tensors())
    return backbone.eval()
