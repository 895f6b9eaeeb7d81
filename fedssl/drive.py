"""Driving the round loop inside a run directory: resume, log, measure, checkpoint, stop safely."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedssl import assemble
from fedssl.data import Dataset
from fedssl.data.progress import Say, say_on_stderr
from fedssl.errors import ConfigError, FedsslError, RunError
from fedssl.evaluate import Evaluation
from fedssl.experiment import Experiment, differences, harmless
from fedssl.federate import Round, federate
from fedssl.lock import locked
from fedssl.report.progress import Progress, telling
from fedssl.report.rounds import RoundsLog, read_rounds, record
from fedssl.runtimes.local import LocalRuntime, Pace
from fedssl.store import Memory, Remembered, Snapshot, Store, write_atomic
from fedssl.train import resolve_precision
from fedssl.tree import Mean, to_device


class Interrupted(FedsslError):  # noqa: N818 - a request, not an error
    """Ctrl-C or a termination signal; the last finished round is saved."""

    exit_code = 130


def drive(experiment: Experiment, folder: Path, data: Dataset, device: torch.device, title: str, quiet: bool) -> None:
    """Train what is left of an experiment in its directory; nothing if it is finished."""
    say: Say = (lambda line: None) if quiet else say_on_stderr
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), _reproducible(experiment, device):
        experiment = agree(experiment, folder, device, say)
        store = Store(folder)
        snapshot = store.load(say)
        if snapshot is None and read_rounds(folder / "rounds.jsonl"):
            raise RunError(f"{folder} has finished rounds but no checkpoint to go on from; nothing was changed")
        if snapshot is not None and not (folder / "experiment.toml").is_file():
            raise RunError(f"{folder} has checkpoints but no experiment.toml that says of what; nothing was changed")
        owners = assemble.deal(experiment, data, say)
        agree_on_images(folder, data, owners)
        write_atomic(folder / "experiment.toml", experiment.to_toml().encode())
        if snapshot is None or snapshot.rounds < experiment.rounds:
            Drive(experiment, folder, data, owners, device, store, say).train(snapshot, title, quiet)
        if all(line["failed"] for line in read_rounds(folder / "rounds.jsonl")):
            raise RunError(f"{folder}: no round had a sound upload, so nothing was learned; rounds.jsonl says why")


def agree(experiment: Experiment, folder: Path, device: torch.device, say: Say) -> Experiment:
    """The experiment as it will run in this directory; refused if the one begun there means something else."""
    precision = resolve_precision(experiment.train.precision, device)
    wanted = experiment.with_changes({"train.precision": precision})
    path = folder / "experiment.toml"
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file, not a run directory. Choose another --dir")
    if path.is_file():
        begun = Experiment.from_file(path)
        changed = differences(begun, wanted)
        refused = [key for key in changed if not harmless(key)]
        if wanted.rounds < begun.rounds:
            refused.append("rounds")
        if refused:
            lines = "; ".join(f"{key}: {changed[key][0]!r} there, {changed[key][1]!r} asked for" for key in refused)
            raise ConfigError(f"{folder} holds a run of another experiment ({lines}). Choose another --dir")
        if wanted.rounds > begun.rounds and wanted.train.schedule != "constant":
            say(
                f"{begun.rounds} rounds become {wanted.rounds}: the learning rate follows the longer schedule from here"
            )
    return wanted


def agree_on_images(folder: Path, data: Dataset, owners: Mapping[str, Tensor]) -> None:
    """Refuse to go on with other images, or the same ones dealt otherwise, than a run began with."""
    digest = hashlib.sha256()
    for client, index in owners.items():
        digest.update(json.dumps([client, len(index), *data.train.image]).encode())
        digest.update(data.train.pixels[index].numpy().data)
    path, found = folder / "images.sha256", digest.hexdigest()
    if path.is_file() and path.read_text("utf-8").strip() != found:
        raise ConfigError(f"{folder} holds a run on other images, or on these dealt otherwise. Choose another --dir")
    write_atomic(path, f"{found}\n".encode())


class Drive:
    """One process's turn at a run."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        data: Dataset,
        owners: Mapping[str, Tensor],
        device: torch.device,
        store: Store,
        say: Say,
    ) -> None:
        self.experiment, self.folder, self.device, self.store, self.say = (
            experiment,
            folder,
            device,
            store,
            say,
        )
        # Only those with images: a site of a client that never trains would be measured as if it had.
        self.owners = {client: index for client, index in owners.items() if len(index)}
        self.shards = assemble.shards(experiment, data, self.owners, device)
        self.trainers = assemble.build_trainers(experiment, data.train.image, device, len(self.owners))
        self.evaluation = Evaluation(experiment, data, device)
        self.stop = threading.Event()

    def train(self, resumed: Snapshot | None, title: str, quiet: bool) -> None:
        last = resumed or self._begin()
        memory = Memory(_memory_on(last, self.device))
        log = RoundsLog(self.folder / "rounds.jsonl", last.rounds)
        if resumed is not None:
            self.say(f"going on after round {last.rounds} of {self.experiment.rounds}")
        asked = self.experiment.topology.plan(list(self.owners), 0, self.experiment.seed).home
        with telling(title, self.experiment.rounds, last.rounds, len(asked), quiet) as progress:
            runtime = self._runtime(memory, progress)
            saved, begun = time.monotonic(), time.perf_counter()
            unsaved = False
            try:
                for round in self._rounds(runtime, last):
                    line = record(round, time.perf_counter() - begun, self._knn(round))
                    log.append(line)
                    progress.round(line)
                    last, unsaved = Snapshot(round.number + 1, round.sites, memory.snapshot()), True
                    if time.monotonic() - saved >= self.experiment.train.checkpoint_every and not self.store.busy:
                        self.store.save(last)
                        saved, unsaved = time.monotonic(), False
                    begun = time.perf_counter()
            except KeyboardInterrupt:
                raise Interrupted(
                    f"stopped after round {last.rounds} of {self.experiment.rounds}; the same command goes on"
                ) from None
            finally:
                self._close(runtime, last if unsaved else None)

    def _begin(self) -> Snapshot:
        """The state before the first round, saved at once: a run that has begun is never mistaken for a new one."""
        first = assemble.first_sites(self.experiment, self.trainers[0], list(self.owners))
        snapshot = Snapshot(0, first, {})
        self.store.save(snapshot)
        self.store.wait()
        return snapshot

    def _rounds(self, runtime: LocalRuntime, last: Snapshot) -> Iterator[Round]:
        e = self.experiment
        wire = e.algorithm.wire(self.trainers[0].method)
        sites = {site: to_device(tree, self.device) for site, tree in last.sites.items()}
        return federate(e.algorithm, e.topology, runtime, wire, sites, Mean, e.seed, last.rounds, e.rounds)

    def _runtime(self, memory: Memory, progress: Progress) -> LocalRuntime:
        e = self.experiment

        def pace(round: int) -> Pace:
            return Pace(e.train.rate(round, e.rounds), round / e.rounds)

        return LocalRuntime(e.algorithm, self.shards, self.trainers, memory, e.seed, pace, self.stop, progress.client)

    def _knn(self, round: Round) -> float | None:
        every, number = self.experiment.probe.every, round.number + 1
        due = every and (number % every == 0 or number == self.experiment.rounds)
        if not due or not self.evaluation.possible:
            return None
        return self.evaluation.measure(assemble.models(self.experiment, round.sites), ("knn",))["knn"].mean

    def _close(self, runtime: LocalRuntime, unsaved: Snapshot | None) -> None:
        """End the clients still training, then save what is finished; another Ctrl-C must not cut that short."""
        with _signals_ignored():
            self.stop.set()
            runtime.close()
            if unsaved is not None:
                self.store.save(unsaved)
            self.store.wait()


def _memory_on(snapshot: Snapshot, device: torch.device) -> dict[str, Remembered]:
    return {c: Remembered(round, to_device(tree, device)) for c, (round, tree) in snapshot.memory.items()}


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _reproducible(experiment: Experiment, device: torch.device) -> Iterator[None]:
    """On CUDA: the fastest kernels, or with train.deterministic only those that give equal bits from run to run."""
    if device.type != "cuda":
        yield
        return
    strict, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(experiment.train.deterministic)
    torch.backends.cudnn.benchmark = not experiment.train.deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict)
        torch.backends.cudnn.benchmark = benchmark
