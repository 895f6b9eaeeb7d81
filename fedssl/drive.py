"""Driving the round loop inside a run directory: resume, log, measure, checkpoint, stop safely."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssl import assemble, kernels
from fedssl.agree import agree, agree_on_images
from fedssl.data import Dataset
from fedssl.data.progress import Say, say_on_stderr
from fedssl.errors import FedsslError, RunError
from fedssl.evaluate import Evaluation
from fedssl.experiment import Experiment
from fedssl.federate import Round, federate
from fedssl.lock import locked
from fedssl.memory import Memory
from fedssl.models import models_of
from fedssl.numerics import numerics
from fedssl.provenance import code
from fedssl.report.progress import Progress, telling
from fedssl.report.rounds import RoundsLog, read_rounds, record
from fedssl.runtimes.local import LocalRuntime, Pace
from fedssl.score import Score
from fedssl.store import Snapshot, Store, write_atomic
from fedssl.train import resolve_mode, resolve_precision
from fedssl.tree import Mean, to_device


class Interrupted(FedsslError):  # noqa: N818 - a request, not an error
    """Ctrl-C or a termination signal; the last finished round is saved."""

    exit_code = 130


def drive(
    experiment: Experiment,
    folder: Path,
    data: Dataset,
    public: Tensor | None,
    device: torch.device,
    title: str,
    quiet: bool,
) -> None:
    """Train what is left of an experiment in its directory; nothing if it is finished."""
    say: Say = (lambda line: None) if quiet else say_on_stderr
    folder.mkdir(parents=True, exist_ok=True)
    code()  # of now: files may be edited while this runs
    train = experiment.train
    exact = resolve_precision(train.precision, device) == "fp32"
    mode, problem = resolve_mode(train.mode, device), kernels.missing(device)
    if mode == "captured" and problem:
        say(f"{problem}: nothing is compiled, and training runs at about half its speed")
    if mode != "eager":
        torch.compiler.reset()  # what other runs of this process have compiled must not decide how this one computes
    with locked(folder), numerics(device, train.deterministic, exact):
        experiment = agree(experiment, folder, device, say)
        store = Store(folder)
        snapshot = store.resume(say)
        if snapshot is None and any(True for _ in read_rounds(folder / "rounds.jsonl")):
            raise RunError(f"{folder} has finished rounds but no checkpoint to go on from; nothing was changed")
        if snapshot is not None and not (folder / "experiment.toml").is_file():
            raise RunError(f"{folder} has checkpoints but no experiment.toml that says of what; nothing was changed")
        seen, owners = assemble.deal(experiment, data, say)
        agree_on_images(folder, seen, owners, public)
        write_atomic(folder / "experiment.toml", experiment.to_toml().encode())
        if snapshot is None or snapshot.rounds < experiment.rounds:
            evaluation = Evaluation(experiment, data, device)
            turn = Drive(experiment, folder, seen, public, owners, evaluation, device, store, say)
            turn.train(snapshot, title, quiet)
        if all(line["failed"] for line in read_rounds(folder / "rounds.jsonl")):
            raise RunError(f"{folder}: no round had a sound upload, so nothing was learned; rounds.jsonl says why")


class Drive:
    """One process's turn at a run."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        data: Dataset,
        public: Tensor | None,
        owners: Mapping[str, Tensor],
        evaluation: Evaluation,
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
        asked = experiment.topology.plan(list(self.owners), 0, experiment.seed).home
        self.trainers = assemble.build_trainers(experiment, data.train.image, device, len(asked))
        devices = dict.fromkeys(trainer.device for trainer in self.trainers)
        self.shards = assemble.shards(data, self.owners, devices)
        self.public = {} if public is None else {each: public.to(each) for each in devices}
        self.evaluation = evaluation
        self.stop = threading.Event()

    def train(self, resumed: Snapshot | None, title: str, quiet: bool) -> None:
        last = resumed or self._begin()
        memory = self._memory(last)
        if self.evaluation.note and self.experiment.probe.every:
            self.say(self.evaluation.note)
        if warning := self.experiment.algorithm.warning:
            self.say(warning)
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
                    done = Snapshot(round.number + 1, round.sites, memory.snapshot())
                    line = self._record(round, done, time.perf_counter() - begun)
                    log.append(line)
                    progress.round(line)
                    last, unsaved = done, True
                    if time.monotonic() - saved >= self.experiment.train.checkpoint_every and not self.store.busy:
                        self.store.save(last)
                        saved, unsaved = time.monotonic(), False
                    begun = time.perf_counter()
            except KeyboardInterrupt:
                raise Interrupted(
                    f"stopped after round {last.rounds} of {self.experiment.rounds}; the same command goes on"
                ) from None
            finally:
                self._close(runtime, memory, last if unsaved else None)

    def _begin(self) -> Snapshot:
        """The state before the first round, saved at once: a run that has begun is never mistaken for a new one."""
        trainer = self.trainers[0]
        first = assemble.first_sites(self.experiment, trainer, list(self.owners), self.public.get(trainer.device))
        snapshot = Snapshot(0, first, {})
        self.store.save(snapshot)
        self.store.wait()
        return snapshot

    def _memory(self, last: Snapshot) -> Memory:
        tier, clients, ahead = self.experiment.train.memory, len(self.owners), len(self.trainers)
        return Memory(self.store.rows, last.memory, tier, self.device, clients, ahead)

    def _rounds(self, runtime: LocalRuntime, last: Snapshot) -> Iterator[Round]:
        e = self.experiment
        wire = e.algorithm.wire(self.trainers[0].method)
        sites = {site: to_device(tree, self.trainers[0].device) for site, tree in last.sites.items()}
        return federate(e.algorithm, e.topology, runtime, wire, sites, Mean, e.seed, last.rounds, e.rounds)

    def _runtime(self, memory: Memory, progress: Progress) -> LocalRuntime:
        e = self.experiment

        def pace(round: int) -> Pace:
            return Pace(e.train.rate(round, e.rounds), round / e.rounds, e.rounds)

        return LocalRuntime(
            e.algorithm, self.shards, self.trainers, memory, e.seed, pace, self.stop, progress.client, self.public
        )

    def _record(self, round: Round, done: Snapshot, seconds: float) -> dict[str, Any]:
        rounds, knn = self.experiment.rounds, self._knn(done)
        accuracies = (None, None) if knn is None else (knn.mean, knn.common)
        return record(round, rounds, self.experiment.train.rate(round.number, rounds), seconds, *accuracies)

    def _knn(self, done: Snapshot) -> Score | None:
        every = self.experiment.probe.every
        due = every and (done.rounds % every == 0 or done.rounds == self.experiment.rounds)
        if not due or not self.evaluation.possible:
            return None
        models = models_of(self.experiment, done.sites, done.memory, self.trainers[0].device)
        return self.evaluation.measure(models, ("knn",), models.apart)["knn"] if models else None

    def _close(self, runtime: LocalRuntime, memory: Memory, unsaved: Snapshot | None) -> None:
        """End the clients still training, then save what is finished; another Ctrl-C must not cut that short."""
        with _signals_ignored():
            self.stop.set()
            runtime.close()
            memory.close()
            if unsaved is not None:
                self.store.save(unsaved)
            self.store.wait()


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
