"""One process's part of a run, in any runtime: run rounds, log, measure, checkpoint, stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedssl.algorithm import Sites
from fedssl.core.console import Notify, print_to_stderr
from fedssl.core.errors import FedsslError
from fedssl.core.provenance import code
from fedssl.core.signals import repeats_ignored, signals_ignored
from fedssl.core.state.tree import Tree, to_device
from fedssl.engine.checkpoints.client_memory import StoredMemory
from fedssl.engine.checkpoints.store import Snapshot, Store
from fedssl.engine.federate import Round, Runtime, federate
from fedssl.engine.privacy.ledger import Ledger
from fedssl.engine.round_rules import RoundRules, accept_every_model, no_quorum
from fedssl.engine.uploads.settings import NO_BOUNDS
from fedssl.engine.uploads.upload_weights import ImageCounts
from fedssl.engine.uploads.validate import Schema
from fedssl.evaluation.evaluate import Evaluation
from fedssl.experiment.experiment import Experiment
from fedssl.method import Method
from fedssl.runs.callbacks import Callbacks
from fedssl.runs.feature_check import FeatureCheck
from fedssl.runs.image_hashes import hash_images, hash_other
from fedssl.runs.live_status import Connected, LiveStatus, ObservedProgress, ObservedRuntime
from fedssl.runs.private_run import announce_end, check_budget, open_ledger, private_merge
from fedssl.runs.progress import round_progress
from fedssl.runs.round_scores import NOT_MEASURED, RoundScores, log_entries, measure_round
from fedssl.runs.round_warnings import RoundWarnings
from fedssl.runs.rounds_log import RoundsLog, record
from fedssl.runs.start_warnings import warn
from fedssl.runs.stored_rounds import load_newest as load_newest
from fedssl.runs.stored_rounds import raise_if_no_round_succeeded as raise_if_no_round_succeeded
from fedssl.runs.time_left import TRAINING_ONLY, FollowingWork, Pace

STOPPING = "stopping after the current step; finished rounds are saved"


class Interrupted(FedsslError):  # noqa: N818 - a request, not an error
    """Ctrl-C or a termination signal; the last finished round is saved."""

    exit_code = 130


def ignore_round(round: Round) -> None:
    """Do nothing after a round."""


class ActiveRuntime(NamedTuple):
    """A runtime in use, and what a session needs of it."""

    runtime: Runtime
    counts: ImageCounts
    # Returns the clients' memories at the end of a round, as far as this process holds them.
    client_memory: Callable[[], Mapping[str, StoredMemory]]
    close: Callable[[], None]
    quorum: Callable[[int], int] = no_quorum  # clients asked -> valid uploads required
    on_round: Callable[[Round], None] = ignore_round  # called after each round


@dataclass(frozen=True)
class Session:
    """One process's part of a run."""

    experiment: Experiment
    folder: Path
    store: Store
    evaluation: Evaluation
    device: torch.device  # where sites are merged and models measured
    clients: Sequence[str]  # those that have images, in order
    checkpoint_every: float  # seconds between checkpoints, at least
    notify: Notify
    workers: int | None = None  # clients that train at the same time; None: all of a round
    method: Method | None = None  # whose loss of random guessing is compared with that of rounds
    callbacks: Callbacks = field(default_factory=Callbacks)  # started already
    connected: Connected | None = None  # clients whose nodes are connected; None: all are local

    def begin(self, sites: Sites) -> Snapshot:
        """Save the state before the first round: it marks the run as started."""
        check_budget(self.experiment, self.clients)
        snapshot = Snapshot(0, sites, {})
        self.store.save(snapshot)
        self.store.wait()
        return snapshot

    def run(
        self,
        last: Snapshot,
        open_runtime: Callable[[ObservedProgress], ActiveRuntime],
        *,
        schema: Schema,
        resumed: bool,
        title: str,
        quiet: bool,
        later: FollowingWork = TRAINING_ONLY,
    ) -> None:
        """Run the rounds after `last`. Finished rounds are saved also if this is interrupted."""
        code()  # computed now: source files may be edited during the run
        self._announce(last, resumed, quiet)
        ledger = open_ledger(self.experiment, self.folder, last, self.notify)
        rounds = self.experiment.rounds
        pace = Pace(rounds, last.rounds, self.clients_per_round, self.workers, later=later)
        with (
            repeats_ignored(),
            round_progress(title, pace, quiet) as display,
            LiveStatus(
                self.folder, rounds, pace, self.experiment.privacy.enabled, self.connected
            ) as status,
        ):
            progress = ObservedProgress(display, status)
            recorder = Recorder(self, progress, last)
            active = open_runtime(progress)
            try:
                observed = active._replace(runtime=ObservedRuntime(active.runtime, status))
                for round in self._rounds(observed, schema, last, ledger):
                    recorder.record(round, active)
                announce_end(self.experiment, self.folder, recorder.last, self.notify)
            except KeyboardInterrupt:
                self.notify(STOPPING)  # at once: what follows may take as long as a step
                status.stop()
                stopped = f"stopped after round {recorder.last.rounds} of {rounds}"
                raise Interrupted(f"{stopped}; the same command resumes the run") from None
            finally:
                self._close(active, recorder.unsaved)

    @property
    def clients_per_round(self) -> int:
        """The number of clients that are asked in a round."""
        first_plan = self.experiment.topology.plan(self.clients, 0, self.experiment.seed)
        return len(first_plan.site_of)

    def _announce(self, last: Snapshot, resumed: bool, quiet: bool) -> None:
        note = self.evaluation.images.note
        if note and self.experiment.probe.every:
            self.notify(note)
        warn(self.experiment, print_to_stderr if quiet else self.notify)
        if resumed:
            self.notify(f"resuming after round {last.rounds} of {self.experiment.rounds}")

    def _rounds(
        self, active: ActiveRuntime, schema: Schema, last: Snapshot, ledger: Ledger | None
    ) -> Iterator[Round]:
        experiment = self.experiment
        rules = self._rules(active)
        sites = {site: to_device(tree, self.device) for site, tree in last.sites.items()}
        return federate(
            experiment.algorithm,
            experiment.topology,
            active.runtime,
            sites,
            schema=schema,
            rounds=experiment.rounds,
            start=last.rounds,
            seed=experiment.seed,
            typical_update=last.typical_update,
            rules=rules,
            mean=experiment.mean.start,
            private=private_merge(experiment, self.clients, ledger, schema, rules),
        )

    def _rules(self, active: ActiveRuntime) -> RoundRules:
        """Return the rules that uploads and merged models of this run must satisfy."""
        experiment = self.experiment
        model_fault: Callable[[Tree], str | None] = accept_every_model
        if experiment.topology.merges:
            image = self.evaluation.data.train.image_shape
            model_fault = FeatureCheck(experiment, image, self.device)
        guard = experiment.guard
        if experiment.privacy.enabled:  # clipping replaces bounds that other uploads determine
            guard = NO_BOUNDS
        return RoundRules(
            guard=guard,
            lr_at=lambda round: experiment.train.lr_at(round, experiment.rounds),
            min_uploads=experiment.min_uploads,
            quorum=active.quorum,
            max_share=experiment.guard.max_share or active.counts.max_share,
            counts=active.counts,
            model_fault=model_fault,
            compares_uploads=not experiment.privacy.enabled,
        )

    def log_line(self, round: Round, knn: RoundScores, seconds: float) -> dict[str, Any]:
        """Return the line of the rounds log for a finished round."""
        experiment = self.experiment
        return record(
            round,
            experiment.rounds,
            experiment.train.lr_at(round.number, experiment.rounds),
            seconds,
            log_entries(self.evaluation, knn, self._image_hashes),
            warning=experiment.algorithm.warning,
        )

    @cached_property
    def _image_hashes(self) -> dict[str, str | None]:
        """Hashes of the images that rounds are measured on."""
        other = self.evaluation.other
        return {
            "test_images": hash_images(self.evaluation.data.test),
            **hash_other(None if other is None else other.data),
        }

    def _close(self, active: ActiveRuntime, unsaved: Snapshot | None) -> None:
        """Close the runtime, then save finished rounds; another Ctrl-C must not interrupt that."""
        with signals_ignored():
            active.close()
            if unsaved is not None:
                self.store.save(unsaved)
            self.store.wait()


class Recorder:
    """Logs, measures and saves the rounds of a session as they finish."""

    def __init__(self, session: Session, progress: ObservedProgress, last: Snapshot) -> None:
        log = session.folder / "rounds.jsonl"
        self.last = last
        self.unsaved: Snapshot | None = None
        self._session = session
        self._progress = progress
        self._log = RoundsLog(log, last.rounds, notify=session.notify)
        self._warnings = RoundWarnings(session.experiment.algorithm, session.method, log)
        self._saved = time.monotonic()
        self._round_start = time.perf_counter()

    def record(self, round: Round, active: ActiveRuntime) -> None:
        """Log a finished round, measure it if it is due, and save a checkpoint if it is time."""
        session = self._session
        memory = active.client_memory()
        snapshot = Snapshot(round.number + 1, round.sites, memory, round.typical_update)
        if round.spent is not None:
            snapshot = snapshot._replace(releases=round.spent.releases)
        seconds = time.perf_counter() - self._round_start
        self._progress.status.measure()
        try:
            knn = measure_round(session.evaluation, snapshot, session.device)
        except Exception:
            # A failing probe must not lose the round.
            self._log.append(session.log_line(round, NOT_MEASURED, seconds))
            self._set_last(snapshot)
            raise
        line = session.log_line(round, knn, seconds)
        self._log.append(line)
        self._set_last(snapshot)  # at once: a signal from here on saves this round
        self._progress.round(line)
        active.on_round(round)
        for warning in self._warnings.update(line):
            session.notify(warning)
            self._progress.status.warn(warning)
        if self._checkpoint_due():
            session.store.save(snapshot)
            self._saved = time.monotonic()
            self.unsaved = None
        session.callbacks.round(line)
        self._round_start = time.perf_counter()

    def _set_last(self, snapshot: Snapshot) -> None:
        self.last = snapshot
        self.unsaved = snapshot

    def _checkpoint_due(self) -> bool:
        every = self._session.checkpoint_every
        if time.monotonic() - self._saved < every:
            return False
        # 0 means every round, also if the previous checkpoint is still being written.
        return every == 0 or not self._session.store.busy
