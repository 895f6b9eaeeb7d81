"""Evaluate the models of a run: the probes, applied to the labelled images of one experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedssl import nets
from fedssl.core.console import Notify, ShowStep, ignore_message, steps
from fedssl.core.devices.precision import float32
from fedssl.core.errors import ConfigError, DataError
from fedssl.core.seeds import generator
from fedssl.core.state.state import State
from fedssl.data import Dataset, Images
from fedssl.data.image_pool import PixelRows, place
from fedssl.evaluation.labelled_images import LabelledImages
from fedssl.evaluation.probe_settings import check_suits
from fedssl.evaluation.score import Score
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.federation_setup import build_backbone, build_method, normalisation
from fedssl.experiment.trained_backbone import TrainedBackbones
from fedssl.probes import (
    LINEAR,
    PROBES,
    Labelled,
    Protocol,
    balanced,
    default_neighbours,
    embed,
    fine_tune,
    fine_tuning,
    knn_predict,
    label_count,
    linear_predict,
)
from fedssl.views import ViewGroup


class Evaluation:
    """The probes for the data of one experiment. Probes of the same model share its features."""

    def __init__(
        self,
        experiment: Experiment,
        data: Dataset,
        device: torch.device,
        seen: bool = True,
        notify: Notify = ignore_message,
        *,
        other: Dataset | None = None,
    ) -> None:
        """`seen`: models were pre-trained on these images, except those that were left out.

        `notify` receives the progress of long measurements. `other` are the images of `probe.on`.
        """
        self.experiment = experiment
        self.data = data
        self.device = device
        self.notify = notify
        self.images = LabelledImages(experiment, data, seen)
        self._channels = data.train.image_shape[0]
        self._backbones = TrainedBackbones(experiment, self._channels)
        self._normalisation = normalisation(experiment, self._channels)
        if data.test is not None and len(data.test):
            self._check_channels(data.test)
        self.other: Evaluation | None = None  # on the images of `probe.on`
        if other is not None:
            # Images left out of pre-training are not among these.
            all_images = experiment.with_changes({"data.leave_out": 0.0})
            self.other = Evaluation(all_images, other, device, seen=False, notify=notify)

    def _check_channels(self, test: Images) -> None:
        """Raise DataError if test images have another number of channels than training images."""
        channels = test.image_shape[0]
        if channels != self._channels:
            raise DataError(
                f"test images have {_count_channels(channels)} but training images have "
                f"{self._channels}: convert the test images to {_count_channels(self._channels)}"
            )

    @property
    def knn_settings(self) -> dict[str, Any]:
        """The settings that kNN uses on these images: k and the temperature of the votes."""
        probe = self.experiment.probe
        k = probe.k or default_neighbours(len(self.images.train))
        return {"k": k, "temperature": probe.temperature}

    def backbone(self, state: State) -> nets.Backbone:
        """Return the backbone of a model on the device, in eval mode."""
        return self._backbones.module(state).to(self.device)

    @float32()
    def features(self, state: State, pixels: Tensor | PixelRows) -> Tensor:
        """Return the features (n, d) of images."""
        return embed(self.backbone(state), pixels, self._normalisation, self.device)

    # float32 whatever the precision of training: results must not depend on the kind of GPU.
    @float32()
    def measure(
        self,
        models: Mapping[str, State],
        probes: tuple[str, ...],
        excluded: frozenset[str] = frozenset(),
    ) -> dict[str, Score]:
        """Return the score of each probe over all models.

        A model with several names is evaluated once. Models in `excluded` do not count in the mean.
        """
        for probe in probes:
            check_suits(probe, self.experiment)
        labels = self.images.test.labels.to(self.device)
        scores = {probe: Score() for probe in probes}
        for probe, score in scores.items():
            score.note = "; ".join(self.images.notes(probe)) or None
            score.excluded = excluded
            score.labelled = self.images.learned_from(probe)
            if "k" in PROBES[probe].uses:
                score.neighbours = self.knn_settings["k"]
        # Weak keys: a client's own model is freed when the next one is built, which may then get
        # the same address.
        evaluated: WeakKeyDictionary[State, dict[str, Tensor]] = WeakKeyDictionary()
        per_model = 1 + len(probes)
        with steps("measuring", len(models) * per_model, self.notify) as show:
            for number, (name, state) in enumerate(models.items()):
                if state not in evaluated:
                    show_probe = partial(_show_probe, show, number * per_model, name)
                    evaluated[state] = self._predictions(state, probes, show_probe)
                for probe, predictions in evaluated[state].items():
                    scores[probe].add(name, labels, predictions, self.images.classes)
        return scores

    def _predictions(
        self, state: State, probes: tuple[str, ...], show: ShowStep
    ) -> dict[str, Tensor]:
        """Return the classes (n,) that each probe predicts for the test images, with one model."""
        model = ModelFeatures(self, state)
        predictors: dict[str, Callable[[ModelFeatures], Tensor]] = {
            "knn": self._knn,
            "linear": self._linear,
            "semi": self._semi,
            "classifier": self._classifier,
            "per-client": self._linear,  # per_client.py does the rest
        }
        if any(PROBES[probe].uses_features for probe in probes):
            show(0, "features")
            model.compute()
        predictions = {}
        for number, probe in enumerate(probes, 1):
            show(number, f"{probe} probe")
            predictions[probe] = predictors[probe](model)
        return predictions

    def _knn(self, model: ModelFeatures) -> Tensor:
        return knn_predict(model.train, model.test, **self.knn_settings)

    def _linear(self, model: ModelFeatures) -> Tensor:
        probe = self.experiment.probe
        seed = self.experiment.seed
        protocol = LINEAR[probe.protocol].changed(probe.epochs, probe.lr, probe.batch)
        if protocol.augmented and probe.solver == "protocol":
            return self._linear_on_views(model, protocol)
        train = model.train
        if probe.labels:
            index = self._labelled_index(train.labels).to(self.device)
            train = Labelled(train.features[index], train.labels[index])
        return linear_predict(
            train, model.test, protocol, seed=seed, penalty=probe.penalty, solver=probe.solver
        )

    def _labelled_index(self, labels: Tensor) -> Tensor:
        """Return the indices of the labelled images that `labels` of the settings selects."""
        count = label_count(self.experiment.probe.labels, len(labels))
        return balanced(labels, count, generator(self.experiment.seed, "labelled"))

    def _linear_on_views(self, model: ModelFeatures, protocol: Protocol) -> Tensor:
        """Return the predictions of a linear layer that learns from views, not from features."""
        probe = self.experiment.probe
        images = self.images.train
        if probe.labels:
            images = images.select(self._labelled_index(images.labels))
        self._check_enough(images)
        placed = place(images.pixel_rows, self.device)
        trained = fine_tune(
            self.backbone(model.state),
            # If they do not fit on the device, they are copied batch by batch.
            placed if isinstance(placed, PixelRows) else images.pixel_rows,
            images.labels.to(self.device),
            classes=self.images.classes,
            normalisation=self._normalisation,
            protocol=protocol,
            seed=self.experiment.seed,
            views=self._views,
            penalty=probe.penalty,
        )
        logits = embed(trained, self.images.test.pixel_rows, self._normalisation, self.device)
        return logits.argmax(1)

    @property
    def _views(self) -> ViewGroup | None:
        """The method's first group of views; None if it trains on clean images."""
        channels, height, _ = self.images.train.image_shape
        settings = self.experiment.method
        with nets.uninitialized():
            method = settings.make(build_backbone(self.experiment, channels), height)
        return next(iter(method.views), None)

    def _check_enough(self, images: Images) -> None:
        """Raise ConfigError if BatchNorm in training mode would have no statistics."""
        if len(images) < 2:
            raise ConfigError(
                "fine-tuning needs at least 2 labelled images, but the settings select 1 of "
                f"{len(self.images.train)}: raise labels"
            )

    def _semi(self, model: ModelFeatures) -> Tensor:
        probe = self.experiment.probe
        subset = self.images.fine_tuning_subset
        protocol = fine_tuning(probe.protocol, subset.share)
        if protocol.head_normalises or not probe.frozen:
            self._check_enough(subset.images)
        tuned = fine_tune(
            self.backbone(model.state),
            subset.images.pixels.to(self.device),
            subset.images.labels.to(self.device),
            classes=self.images.classes,
            normalisation=self._normalisation,
            protocol=protocol.changed(probe.epochs, probe.lr, probe.batch),
            seed=self.experiment.seed,
            frozen=probe.frozen,
        )
        logits = embed(tuned, self.images.test.pixel_rows, self._normalisation, self.device)
        return logits.argmax(1)

    def _classifier(self, model: ModelFeatures) -> Tensor:
        return predict_labels(
            self.experiment, model.state, self.images.test.pixel_rows, self.device
        )


class ModelFeatures:
    """The features of one model, computed when a probe first needs them."""

    def __init__(self, evaluation: Evaluation, state: State) -> None:
        self.evaluation = evaluation
        self.state = state

    def compute(self) -> None:
        """Compute all features now."""
        _ = self.train, self.test

    @cached_property
    def train(self) -> Labelled:
        """Features and labels of the images that probes learn from."""
        images = self.evaluation.images.train
        features = self.evaluation.features(self.state, images.pixel_rows)
        return Labelled(features, images.labels.to(features.device))

    @cached_property
    def test(self) -> Tensor:
        """Features (n, d) of the images that probes are tested on."""
        return self.evaluation.features(self.state, self.evaluation.images.test.pixel_rows)


def _show_probe(show: ShowStep, finished: int, name: str, number: int, step: str) -> None:
    """Show step `number` of one model, after `finished` steps of other models."""
    show(finished + number, f"model {name}, {step}")


@float32()
@torch.no_grad()
def predict_labels(
    experiment: Experiment, state: State, images: PixelRows, device: torch.device
) -> Tensor:
    """Return the classes (n,) that a model predicts with the classifier it was trained with."""
    method = build_method(experiment, images.image_shape, device).eval()
    method.state.load(state)
    predictions = []
    for chunk in images.chunks(1000):
        logits = method.encode(method.clean(chunk.to(device))).z
        predictions.append(logits.argmax(1))
    return torch.cat(predictions)


def _count_channels(channels: int) -> str:
    return "1 channel" if channels == 1 else f"{channels} channels"
