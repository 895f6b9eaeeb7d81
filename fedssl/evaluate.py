"""Measuring a run's models: the probes bound to one experiment's labelled images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedssl import nets
from fedssl.assemble import build_backbone, build_method, normalisation
from fedssl.data import Dataset
from fedssl.errors import ConfigError, DataError
from fedssl.experiment import Experiment
from fedssl.labelled import LabelledImages
from fedssl.numerics import float32
from fedssl.pixels import Rows
from fedssl.probes import (
    LINEAR,
    OF_TRAINING,
    PROBES,
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


def check_probe(name: str) -> None:
    if name == "transfer":
        raise ConfigError('transfer is a probe on other images: "linear" or "semi" on another data set, --on NAME')
    if name not in PROBES:
        raise ConfigError(f'unknown probe "{name}"{suggest(name, PROBES) or "; known: " + ", ".join(PROBES)}')


def check_suits(probe: str, experiment: Experiment) -> None:
    """Refuse a probe that could find nothing in what an experiment trains."""
    check_probe(probe)
    if PROBES[probe].learns == "nothing" and not experiment.method.method.classifies:
        name = experiment.to_dict()["method"]["name"]
        raise ConfigError(f'probe "{probe}" measures one that the run itself trained; {name} trains none')


ANEW = {"labels": 0, **dict.fromkeys(OF_TRAINING)}


def for_probe(experiment: Experiment, probe: str, settings: Mapping[str, object]) -> Experiment:
    """With settings for one probe, which must be some that it uses; an experiment's own may be any. An experiment's
    labels, epochs, lr and batch are those of its linear probe: where the whole model is fine-tuned, they begin anew."""
    check_probe(probe)
    uses = PROBES[probe].uses
    for key in settings:
        if key in ProbeSettings.model_fields and key not in uses:
            raise ConfigError(f'probe "{probe}" does not use {key}; it uses {", ".join(uses) or "no settings"}')
    ignored = [key for key in ("protocol", *OF_TRAINING) if key in settings]
    if ignored and "solver" in uses and settings.get("solver", experiment.probe.solver) == "lbfgs":
        raise ConfigError(
            f'solver = "lbfgs" finds the minimum itself and makes no use of {", ".join(ignored)}: leave that out, or '
            'set solver = "protocol"'
        )
    anew = ANEW if PROBES[probe].whole else {}
    changed = experiment.with_changes({f"probe.{key}": value for key, value in (anew | dict(settings)).items()})
    check_suits(probe, changed)
    return changed


class Evaluation:
    """Probes for this experiment's data. Features are computed once per model and shared by the probes asked for."""

    def __init__(self, experiment: Experiment, data: Dataset, device: torch.device, seen: bool = True) -> None:
        """`seen`: whether these are the images that models were pre-trained on, but for those that were left out."""
        self.experiment, self.data, self.device = experiment, data, device
        self.images = LabelledImages(experiment, data, seen)
        self._channels = data.train.image[0]
        self._normalisation = normalisation(experiment, self._channels)
        if data.test is not None and len(data.test) and data.test.image[0] != self._channels:
            raise DataError(f"test images have {data.test.image[0]} channels, training images {self._channels}")

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
            check_suits(probe, self.experiment)
        labels = self.images.tested.labels.to(self.device)
        scores = {probe: Score() for probe in probes}
        # Weak: a client's own model goes when the next one is asked for, and its successor may lie where it lay.
        found: WeakKeyDictionary[State, dict[str, Tensor]] = WeakKeyDictionary()
        for name, state in models.items():
            if state not in found:
                guessed = self._guess(state, probes)
                found[state] = {probe: confusion(labels, guessed[probe], self.images.classes) for probe in probes}
            for probe in probes:
                scores[probe].add(name, found[state][probe])
        for probe, score in scores.items():
            score.note, score.apart = "; ".join(self.images.notes(probe)) or None, apart
            score.labelled = self.images.learned_from(probe)
        return scores

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
        probe, few = self.experiment.probe, self.images.few
        if len(few.images) < 2 and not probe.frozen:  # which batch normalisation has no statistics of
            known = len(self.images.known)
            raise ConfigError(f"1 of {known} labelled images is too few to fine-tune with: set more with labels")
        how = fine_tuning(probe.protocol, few.share).changed(probe.epochs, probe.lr, probe.batch)
        backbone, classes, seed = self.backbone(subject.state), self.images.classes, self.experiment.seed
        pixels, labels = few.images.pixels.to(self.device), few.images.labels.to(self.device)
        model = fine_tune(backbone, pixels, labels, classes, self._normalisation, how, seed, probe.frozen)
        return embed(model, self.images.tested.held, self._normalisation, self.device).argmax(1)

    def _classifier(self, subject: Subject) -> Tensor:
        return classified(self.experiment, subject.state, self.images.tested.held, self.device)


class Subject:
    """One model as probes see it: its features are computed when the first probe asks for them."""

    def __init__(self, evaluation: Evaluation, state: State) -> None:
        self.evaluation, self.state = evaluation, state

    @cached_property
    def train(self) -> Labelled:
        """Of the images that probes learn from."""
        known = self.evaluation.images.known
        features = self.evaluation.features(self.state, known.held)
        return Labelled(features, known.labels.to(features.device))

    @cached_property
    def test(self) -> Tensor:
        """Features (n, d) of those that are measured on."""
        return self.evaluation.features(self.state, self.evaluation.images.tested.held)


@float32()
@torch.no_grad()
def classified(experiment: Experiment, state: State, images: Rows, device: torch.device) -> Tensor:
    """The classes (n,) that a model says itself, with the layer it was trained with."""
    method = build_method(experiment, images.image, device).eval()
    method.state.load(state)
    return torch.cat([method.encode(method.clean(x.to(device))).z.argmax(1) for x in images.chunks(1000)])


def backbone_of(state: State, backbone: nets.Backbone) -> nets.Backbone:
    """The backbone filled with a model's weights, in eval mode."""
    backbone.load_state_dict(state.pick(("backbone",)).without_prefix("backbone").tensors())
    return backbone.eval()
