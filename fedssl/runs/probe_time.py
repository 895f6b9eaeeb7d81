"""Estimate the time of measuring one model, from trials on samples of its images."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.core.devices.precision import threads
from fedssl.core.seeds import generator
from fedssl.core.state.state import State
from fedssl.evaluation.evaluate import Evaluation
from fedssl.probes import LINEAR, Labelled, knn_predict
from fedssl.probes.features import EMBEDDED_AT_ONCE
from fedssl.probes.linear import TYPICAL_EVALUATIONS, fit_linear, minimise, thread_count

MIN_SAMPLE = 32  # images of which features are computed
MAX_SAMPLE_SECONDS = 1.5  # of computing the features of a sample
MAX_WARM_UP = 2.0  # seconds; a longer first trial is not repeated
MAX_TRIAL = 0.5  # seconds after which a trial is not repeated further
MAX_ROWS = 2000  # labelled features that a probe learns from in a trial
TRIAL_EPOCHS = 10  # of the linear probe
TRIAL_ITERATIONS = 30  # of L-BFGS; later ones take longer, since more steps are kept


class ProbeSeconds(NamedTuple):
    """The time of measuring one model."""

    model: float  # with every probe
    knn: float  # with kNN alone, as after some rounds


def probe_seconds(evaluation: Evaluation, state: State) -> ProbeSeconds:
    """Return the time of measuring one model, from samples; 0 without labelled images."""
    if not evaluation.images.possible:
        return ProbeSeconds(0.0, 0.0)
    features, embedding = _try_embedding(evaluation, state)
    knn = embedding + _try_knn(evaluation, features)
    model = knn
    if evaluation.experiment.probe.linear:
        model += _try_linear(evaluation, features)
        model += embedding * _passes_over_views(evaluation)
    return ProbeSeconds(model, knn)


def _try_embedding(evaluation: Evaluation, state: State) -> tuple[Tensor, float]:
    """Return features of a sample, and the time of computing all features of one model.

    The sample is as large as a batch, unless the network is slow: on a busy machine, the time of a
    small batch does not decrease with its size.
    """
    images = evaluation.images
    counts = (len(images.train), len(images.test))
    source = images.train if counts[0] > counts[1] else images.test

    def embed(count: int) -> Tensor:
        sample = source.select(torch.arange(min(count, len(source))))
        return evaluation.features(state, sample.pixel_rows)

    per_batch = _seconds(lambda: embed(1))
    per_image = _seconds(lambda: embed(MIN_SAMPLE)) / MIN_SAMPLE
    size = min(EMBEDDED_AT_ONCE, max(MIN_SAMPLE, int(MAX_SAMPLE_SECONDS / per_image)))
    features = embed(size)
    if len(features) > MIN_SAMPLE:
        seconds = _median_time(lambda: embed(size))
        per_image = max(0.0, seconds - per_batch) / len(features)
    batches = sum(math.ceil(count / EMBEDDED_AT_ONCE) for count in counts)
    return features, batches * per_batch + sum(counts) * per_image


def _try_knn(evaluation: Evaluation, features: Tensor) -> float:
    """Return the time of kNN on the features of one model."""
    images = evaluation.images
    queries = features[: len(images.test)]
    train = _labelled(features, min(MAX_ROWS, len(images.train)), images.classes)
    settings = evaluation.knn_settings
    seconds = _seconds(lambda: knn_predict(train, queries, **settings))
    return seconds * len(images.train) / len(train.labels) * len(images.test) / len(queries)


def _try_linear(evaluation: Evaluation, features: Tensor) -> float:
    """Return the time of the linear probe on the features of one model."""
    images = evaluation.images
    probe = evaluation.experiment.probe
    learned = images.learned_from("linear")
    train = _labelled(features, min(MAX_ROWS, learned), images.classes)
    protocol = LINEAR[probe.protocol].changed(probe.epochs, probe.lr, probe.batch)
    numbers = learned * features.shape[1]
    passes = protocol.epochs
    tried = min(TRIAL_EPOCHS, passes)
    if probe.solver == "lbfgs":
        passes = TYPICAL_EVALUATIONS
        tried = TRIAL_ITERATIONS

    def fit() -> Tensor:
        if probe.solver == "lbfgs":
            return minimise(train, probe.penalty, tried).weight
        return fit_linear(train, protocol._replace(epochs=tried)).weight

    with threads(thread_count(numbers, images.classes, passes)):
        seconds = _seconds(fit)
    return seconds * passes / tried * learned / len(train.labels)


def _passes_over_views(evaluation: Evaluation) -> float:
    """Return how often the linear probe computes features of views, in passes over all images."""
    probe = evaluation.experiment.probe
    protocol = LINEAR[probe.protocol].changed(probe.epochs, probe.lr, probe.batch)
    if probe.solver == "lbfgs" or not protocol.augmented:
        return 0.0
    images = evaluation.images
    learned = images.learned_from("linear")
    return protocol.epochs * learned / (len(images.train) + len(images.test))


def _labelled(features: Tensor, rows: int, classes: int) -> Labelled:
    """Return this many features, some of them several times, with random labels."""
    order = torch.randperm(rows, generator=generator("trial labels"))
    labels = (order % classes).to(features.device)
    return Labelled(features[torch.arange(rows) % len(features)], labels)


def _seconds(work: Callable[[], Tensor]) -> float:
    """Return the median time of computing a tensor. The first time may take longer: it counts only
    if it is too long to be repeated."""
    first = _time(work)
    if first > MAX_WARM_UP:
        return first
    return _median_time(work)


def _median_time(work: Callable[[], Tensor]) -> float:
    times: list[float] = []
    while len(times) < 3 and sum(times) < MAX_TRIAL:
        times.append(_time(work))
    return statistics.median_low(times)


def _time(work: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    work().cpu()  # waits until it is computed
    return time.perf_counter() - start
