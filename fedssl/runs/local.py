"""Run an experiment on this machine: every client trains in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median_low

import torch
from torch import Tensor

from fedssl.core import kernels
from fedssl.core.console import Notify, ignore_message, meter, print_to_stderr
from fedssl.core.devices.precision import numerics
from fedssl.core.errors import ConfigError
from fedssl.core.files import integrity
from fedssl.core.files.lock import locked_directory
from fedssl.data import Dataset
from fedssl.engine.checkpoints.client_memory import ClientMemory
from fedssl.engine.checkpoints.store import Snapshot, Store
from fedssl.engine.uploads.upload_weights import ImageCounts
from fedssl.evaluation.evaluate import Evaluation
from fedssl.experiment.client_data import partition_data
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.federation_setup import Federation
from fedssl.runs.callbacks import Callbacks, RunInfo
from fedssl.runs.first_weights import announce_unused
from fedssl.runs.live_status import ObservedProgress
from fedssl.runs.resume_checks import (
    FLOWER,
    IMAGES,
    announce_changed_modules,
    check_resumable,
    check_same_images,
    raise_if_baseline_purged,
    record_experiment,
    started,
)
from fedssl.runs.session import STOPPING as STOPPING
from fedssl.runs.session import ActiveRuntime, Session, load_newest, raise_if_no_round_succeeded
from fedssl.runs.session import Interrupted as Interrupted
from fedssl.runs.time_left import TRAINING_ONLY, Estimate, FollowingWork
from fedssl.runs.workload import adapter_line, shorter, workload
from fedssl.training.trainer import resolve_mode, resolve_precision

# (federation, evaluation, run directory, finished rounds) -> estimate
EstimateRun = Callable[[Federation, Evaluation, Path, int], Estimate]


@dataclass(frozen=True)
class LocalJob:
    """An experiment, its images and the directory that it is trained in."""

    experiment: Experiment
    folder: Path
    data: Dataset
    public: Tensor | None  # images that everyone may see
    device: torch.device
    title: str  # of the progress bar
    quiet: bool = False
    estimate: EstimateRun | None = None  # of the whole command
    later: FollowingWork = TRAINING_ONLY  # without an estimate, what the time left refers to
    callbacks: Callbacks = field(default_factory=Callbacks)
    other: Dataset | None = None  # the images of `probe.on`

    @property
    def notify(self) -> Notify:
        """Print a line, unless the run is quiet."""
        return ignore_message if self.quiet else print_to_stderr

    def start_callbacks(self, experiment: Experiment, finished: int) -> None:
        """Call the callbacks before the first round that is left; `finished` rounds are done."""
        self.callbacks.start(RunInfo(self.folder, self.title, experiment, finished))


def train_locally(job: LocalJob) -> None:
    """Train the rounds of an experiment that are left; nothing if it is finished."""
    settings = job.experiment.train
    mode = resolve_mode(settings.mode, job.device)
    problem = kernels.unavailable_reason(job.device)
    if mode == "captured" and problem:
        job.notify(f"{problem}, so training is not compiled and takes about twice as long")
    if mode != "eager":
        # What other runs of this process have compiled must not decide how this one computes.
        torch.compiler.reset()
    exact = resolve_precision(settings.precision, job.device) == "fp32"
    with locked_directory(job.folder), numerics(job.device, settings.deterministic, exact):
        _train_in_folder(job)


def _train_in_folder(job: LocalJob) -> None:
    """Check that the directory can be resumed, then train. The caller holds its lock."""
    folder = job.folder
    _refuse_flower(folder)
    integrity.repair(folder, job.notify)
    experiment = check_resumable(job.experiment, folder, job.device, job.notify)
    store = Store(folder)
    snapshot = load_newest(folder, store, job.notify)
    if snapshot is not None:
        integrity.adopt(folder, job.notify)
    trains = snapshot is None or snapshot.rounds < experiment.rounds
    announce_changed_modules(folder, job.notify, trains=trains)
    seen, owners = partition_data(experiment, job.data, job.notify)
    images = check_same_images(experiment, folder, seen, owners, job.public, job.notify)

    def record() -> None:
        """Write the experiment and the hash of its images, once nothing can be refused any more."""
        record_experiment(folder, experiment, trains=trains)
        integrity.write_copied(folder, IMAGES, images)
        integrity.remove_copied(folder, FLOWER)  # of a start on Flower that failed

    if snapshot is not None and not trains:
        record()
        job.start_callbacks(experiment, snapshot.rounds)
    else:
        raise_if_baseline_purged(experiment, folder)
        evaluation = Evaluation(experiment, job.data, job.device, other=job.other)
        federation = Federation.build(
            experiment, seen, owners, public=job.public, device=job.device
        )
        LocalSession(job, federation, store, evaluation).train(snapshot, record)
    raise_if_no_round_succeeded(folder)


def _refuse_flower(folder: Path) -> None:
    on_flower = (folder / FLOWER).is_file() or integrity.copy_of(folder, FLOWER) is not None
    if on_flower and started(folder):
        raise ConfigError(
            f"{folder} holds a run on Flower, whose clients store their state on their own "
            "machines: resume it on Flower, or choose another --dir"
        )


class LocalSession:
    """One process's part of a run whose clients are all in this process."""

    def __init__(
        self, job: LocalJob, federation: Federation, store: Store, evaluation: Evaluation
    ) -> None:
        self._job = job
        self._federation = federation
        self._store = store
        self._session = Session(
            experiment=federation.experiment,
            folder=job.folder,
            store=store,
            evaluation=evaluation,
            device=federation.device,
            clients=federation.clients,
            checkpoint_every=federation.experiment.train.checkpoint_every,
            notify=job.notify,
            workers=len(federation.trainers),
            method=federation.trainer.method,
            callbacks=job.callbacks,
        )

    def train(self, resumed: Snapshot | None, record: Callable[[], None]) -> None:
        """Train the rounds that are left; call `record` once nothing can be refused any more."""
        last = resumed
        if last is None:
            self._print_workload(done=0)
            channels = self._job.data.train.image_shape[0]
            announce_unused(self._federation.experiment, channels, self._job.notify)
            sites = self._federation.first_sites(partial(meter, notify=self._job.notify))
            record()
            last = self._session.begin(sites)
            self._print_client_warning()
        else:
            self._print_workload(last.rounds)
            record()
        self._job.start_callbacks(self._federation.experiment, last.rounds)
        memory = ClientMemory(
            self._store.rows,
            last.memory,
            self._federation.experiment.train.client_memory,
            device=self._job.device,
            clients=len(self._federation.clients),
            ahead=len(self._federation.trainers),
        )
        self._session.run(
            last,
            lambda progress: self._open_runtime(memory, progress),
            schema=self._federation.schema,
            resumed=resumed is not None,
            title=self._job.title,
            quiet=self._job.quiet,
            later=self._announce_time(last.rounds),
        )

    def _announce_time(self, done: int) -> FollowingWork:
        """Print the estimated time of the whole command; return what follows training."""
        job = self._job
        if job.quiet or job.estimate is None:
            return job.later
        training, later = job.estimate(
            self._federation, self._session.evaluation, self._session.folder, done
        )
        if training is None:
            return later
        rounds = self._federation.experiment.rounds
        all_rounds = training * rounds / (rounds - done)
        job.notify(f"{job.title}: estimated time: {later.text(training, all_rounds)}")
        advice = shorter(self._federation, training, all_rounds, later)
        if advice is not None:
            job.notify(advice)
        return later._replace(announced=later.total(training, all_rounds))

    def _print_workload(self, done: int) -> None:
        """Print what is trained; `done` rounds are finished."""
        self._job.notify(workload(self._job.title, self._federation, done))
        line = adapter_line(self._federation.trainer.method, self._federation.schema)
        if line is not None:
            self._job.notify(line)

    def _print_client_warning(self) -> None:
        """Print the method's advice for a client with the median number of images.

        A private run prints no numbers of single clients.
        """
        if self._federation.experiment.privacy.enabled:
            return
        sizes = [shard.images for shard in self._federation.shards.values() if shard.images > 1]
        if not sizes:
            return
        images = median_low(sizes)
        settings = self._federation.experiment.train
        batch = min(settings.batch, images)
        trained = settings.epochs * (images // batch) * batch
        client_warning = self._federation.trainer.method.client_warning(trained)
        if client_warning:
            self._job.notify(f"the median client has {images:,} images: it {client_warning}")

    def _open_runtime(self, memory: ClientMemory, progress: ObservedProgress) -> ActiveRuntime:
        stop = threading.Event()
        runtime = self._federation.runtime(memory, stop, progress.client, progress.start)

        def close() -> None:
            stop.set()
            runtime.close()
            memory.close()

        counts = ImageCounts(self._federation.image_counts, verified=True)
        return ActiveRuntime(runtime, counts, memory.snapshot, close)
