"""Estimate the time of a whole run before its first round, from a few trial steps on its images."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.core.errors import ClientError
from fedssl.core.seeds import generator
from fedssl.data.image_pool import as_pixels
from fedssl.engine.runtimes.client_round import Shard
from fedssl.evaluation.evaluate import Evaluation
from fedssl.experiment.baseline_names import UNTRAINED
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.federation_setup import Federation
from fedssl.method import Batch, Constants, Method, Output
from fedssl.plots.feature_map import MAPPED
from fedssl.runs.baselines import baseline_names
from fedssl.runs.probe_time import ProbeSeconds, probe_seconds
from fedssl.runs.rounds_log import read_rounds
from fedssl.runs.time_left import Estimate, FollowingWork
from fedssl.training.trainer import Trainer, TrainingTask, resolve_mode

TRIAL_STEPS = 4
MAX_WARM_UP = 2.0  # seconds; a longer first trial is not repeated
# Two maps of MAPPED images, at 3 s each on a core of 2020, the drawing and imports. See
# feature_map.py.
PICTURE_SECONDS = 9.0


def estimate_run(
    federation: Federation, evaluation: Evaluation, folder: Path, done: int
) -> Estimate:
    """Return the time of training, of baselines, and of measuring; `done` rounds are finished."""
    experiment = federation.experiment
    workload = _workload(federation)
    names: list[str] = []
    if evaluation.images.possible:
        names = baseline_names(experiment, workload.relative)
    baselines = 0.0
    for name in names:
        baselines += _share_left(experiment, folder, name) * workload.of_baseline(name)
    state = federation.trainer.method.state
    probes = probe_seconds(evaluation, state)
    if evaluation.other is not None:
        knn = probe_seconds(evaluation.other, state).knn
        probes = ProbeSeconds(probes.model + knn, probes.knn + knn)
    picture = _picture_seconds(evaluation)
    own_models = model_count(experiment, federation.clients)
    models = own_models
    for name in names:
        models += baseline_model_count(experiment, federation.clients, name)
    measuring = models * probes.model + picture
    later = FollowingWork(baselines / workload.busiest, measuring, picture=picture > 0)
    speed = training_speed(federation)
    if speed is None:
        return Estimate(None, later)
    rounds = experiment.rounds - done
    seconds = rounds * experiment.train.epochs * workload.busiest / speed
    if experiment.probe.every:
        seconds += math.ceil(rounds / experiment.probe.every) * own_models * probes.knn
    return Estimate(seconds, later)


class _Workload(NamedTuple):
    """The images of a round, and how workers share them."""

    sizes: Sequence[int]  # images of all clients
    participants: Sequence[int]  # images of the clients in the first round
    workers: int

    @property
    def relative(self) -> float:
        """The number of clients, relative to those that take part in a round."""
        return len(self.sizes) / max(1, len(self.participants))

    @property
    def busiest(self) -> int:
        """Images of the busiest worker in a round."""
        return busiest_worker(self.participants, self.workers)

    def of_baseline(self, name: str) -> int:
        """Return the images of the busiest worker in a round of a baseline."""
        if name == "centralized":
            return sum(self.sizes)
        return busiest_worker(self.sizes, self.workers)


def _workload(federation: Federation) -> _Workload:
    experiment = federation.experiment
    counts = federation.image_counts()
    plan = experiment.topology.plan(federation.clients, 0, experiment.seed)
    participants = [counts[client] for client in plan.site_of]
    return _Workload(list(counts.values()), participants, len(federation.trainers))


def busiest_worker(sizes: Sequence[int], workers: int) -> int:
    """Return the images of the worker that has most of them, if the largest client starts first."""
    loads = [0] * workers
    for size in sorted(sizes, reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads)


def _share_left(experiment: Experiment, folder: Path, name: str) -> float:
    """Return the share of a baseline's rounds that must be trained; 0 for untrained models."""
    if name in UNTRAINED:
        return 0.0
    if experiment.with_changes({"topology.name": name}).topology == experiment.topology:
        return 0.0  # the run itself
    finished = sum(1 for _ in read_rounds(folder / name / "rounds.jsonl"))
    return max(0.0, 1 - finished / experiment.rounds)


def training_speed(federation: Federation) -> float | None:
    """Return the images per second of one worker while all of them train, or None.

    Steps are tried only where nothing is compiled, and by methods without labels. The models are
    the same afterwards.
    """
    trainers = federation.trainers
    trainer = federation.trainer
    mode = resolve_mode(trainer.settings.mode, trainer.device)
    if mode != "eager" or trainer.device.type != "cpu" or trainer.method.learns_from_labels:
        return None
    largest = max(federation.shards.values(), key=lambda shard: shard.images)
    stop = threading.Event()
    try_steps = partial(_try_steps, largest, stop)
    set_threads = partial(torch.set_num_threads, trainer.settings.threads)
    with ThreadPoolExecutor(len(trainers), "trial", initializer=set_threads) as pool:
        try:
            return min(pool.map(try_steps, trainers))
        except (ClientError, MemoryError, RuntimeError):
            return None  # training itself reports the reason
        finally:
            stop.set()  # after Ctrl-C, end within a step


def _method_loss(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
    """Return the loss without the algorithm's terms, which need a message of the server."""
    return method.loss(out, constants)


def _try_steps(shard: Shard, stop: threading.Event, trainer: Trainer) -> float:
    """Train a few steps at learning rate 0, restore the model, and return images per second."""
    method = trainer.method
    before = method.state.clone()
    try:
        start = time.perf_counter()
        speed = _images_per_second(shard, stop, trainer, batches=1)
        if time.perf_counter() - start < MAX_WARM_UP:
            batches = max(1, TRIAL_STEPS // trainer.settings.epochs)
            speed = _images_per_second(shard, stop, trainer, batches)
        return speed
    finally:
        method.state.load(before)
        method.uncounted_batches = 0


def _images_per_second(
    shard: Shard, stop: threading.Event, trainer: Trainer, batches: int
) -> float:
    """Return the speed of training on this many batches in each epoch."""
    pixels = as_pixels(shard.on(trainer.device), trainer.device)
    batch = min(trainer.settings.batch, shard.images)
    task = TrainingTask(
        pixels.select(torch.arange(batches * batch) % shard.images),
        labels=None,
        generator=generator("trial", device=trainer.device),
        lr=0.0,
        progress=0.0,
        stop=stop,
    )
    metrics = trainer.fit(task, _method_loss, {})
    return metrics.images / metrics.seconds


def model_count(experiment: Experiment, clients: Sequence[str]) -> int:
    """Return the number of models of a run that are measured.

    Each client has one if the algorithm measures clients, else each site; peers are also measured
    as their mean. See `models_of`.
    """
    if experiment.algorithm.measures_clients:
        return len(clients)
    sites = len(experiment.topology.sites(clients))
    peers = experiment.topology.consensus and sites > 1
    return sites + 1 if peers else sites


def baseline_model_count(experiment: Experiment, clients: Sequence[str], name: str) -> int:
    """Return the number of models of a baseline that are measured in addition to the run's own."""
    if name in UNTRAINED:
        return 1
    baseline = experiment.with_changes({"topology.name": name})
    if baseline.topology == experiment.topology:
        return 0  # the run itself
    return model_count(baseline, clients)


def _picture_seconds(evaluation: Evaluation) -> float:
    test = evaluation.data.test
    if not evaluation.experiment.probe.picture or test is None or not test.labelled:
        return 0.0
    return PICTURE_SECONDS * min(1.0, len(test) / MAPPED)
