"""Measuring a run's models: the probes bound to one experiment's labelled images."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedssl import nets
from fedssl.assemble import build_backbone, normalisation
from fedssl.data import Dataset, Images
from fedssl.errors import ConfigError
from fedssl.experiment import Experiment
from fedssl.pixels import Rows
from fedssl.probes import LINEAR, Labelled, balanced, embed, how_many, knn_predict, linear_predict
from fedssl.score import Score, confusion
from fedssl.seeds import generator
from fedssl.settings import suggest
from fedssl.tree import State

PROBES = ("knn", "linear")
HALVED = (
    "the training images have no labels: probes learn from one half of the labelled test images "
    "and are measured on the other"
)


def check_probe(name: str) -> None:
    if name not in PROBES:
        raise ConfigError(f'unknown probe "{name}"{suggest(name, PROBES) or "; known: " + ", ".join(PROBES)}')


class Evaluation:
    """Probes for this experiment's data. Features are computed once per model and shared by the probes asked for."""

    def __init__(self, experiment: Experiment, data: Dataset, device: torch.device) -> None:
        self.experiment, self.data, self.device = experiment, data, device
        self._channels = data.train.image[0]
        self._normalisation = normalisation(experiment, self._channels)
        self.note = HALVED if self.possible and not data.train.labelled else None

    @property
    def possible(self) -> bool:
        """Whether there are labelled test images to measure with, and some to learn from."""
        test = self.data.test
        return test is not None and test.labelled and (self.data.train.labelled or len(test) > 1)

    def sets(self) -> tuple[Images, Images]:
        """Labelled images that probes learn from, and those they are measured on."""
        if self.data.test is None or not self.possible:
            raise ConfigError("probes need labelled test images; there are none")
        if self.data.train.labelled:
            return self.data.train, self.data.test
        test = self.data.test
        order = torch.randperm(len(test), generator=generator("halves"))
        order = order[test.labels.cpu()[order].argsort(stable=True)]  # class by class: every other one of each
        return test.select(order[1::2].sort().values), test.select(order[::2].sort().values)

    def features(self, state: State, pixels: Tensor | Rows) -> Tensor:
        with torch.random.fork_rng(devices=[]):  # a new backbone draws weights, here only to be overwritten
            backbone = backbone_of(state, build_backbone(self.experiment, self._channels)).to(self.device)
        return embed(backbone, pixels, self._normalisation, self.device)

    def measure(
        self, models: Mapping[str, State], probes: tuple[str, ...], apart: frozenset[str] = frozenset()
    ) -> dict[str, Score]:
        """Each probe's accuracy for each model; a model that goes by several names is measured once."""
        for probe in probes:
            check_probe(probe)
        known, unknown = self.sets()
        train_labels, test_labels = (images.labels.to(self.device) for images in (known, unknown))
        classes = max(len(unknown.classes), *(int(labels.max()) + 1 for labels in (train_labels, test_labels)))
        scores = {probe: Score() for probe in probes}
        # Weak: a client's own model goes when the next one is asked for, and its successor may lie where it lay.
        found: WeakKeyDictionary[State, dict[str, Tensor]] = WeakKeyDictionary()
        for name, state in models.items():
            if state not in found:
                train = Labelled(self.features(state, known.held), train_labels)
                test = self.features(state, unknown.held)
                predictions = {probe: getattr(self, f"_{probe}")(train, test) for probe in probes}
                found[state] = {p: confusion(test_labels, guessed, classes) for p, guessed in predictions.items()}
            for probe in probes:
                scores[probe].add(name, found[state][probe])
        for score in scores.values():
            score.note, score.apart = self.note, apart
        return scores

    def _knn(self, train: Labelled, queries: Tensor) -> Tensor:
        return knn_predict(train, queries, self.experiment.probe.k, self.experiment.probe.temperature)

    def _linear(self, train: Labelled, queries: Tensor) -> Tensor:
        probe, seed = self.experiment.probe, self.experiment.seed
        if probe.labels:
            count = how_many(probe.labels, len(train.labels))
            some = balanced(train.labels, count, generator(seed, "labelled")).to(self.device)
            train = Labelled(train.features[some], train.labels[some])
        how = LINEAR[probe.protocol].changed(probe.epochs, probe.lr, probe.batch)
        return linear_predict(train, queries, how, seed, probe.penalty, probe.solver)


def backbone_of(state: State, backbone: nets.Backbone) -> nets.Backbone:
    """The backbone filled with a model's weights, in eval mode."""
    backbone.load_state_dict(state.pick(("backbone",)).without_prefix("backbone").tensors())
    return backbone.eval()
