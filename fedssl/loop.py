"""The rounds of a run inside its directory, whichever runtime carries the messages: log, measure, checkpoint, stop
safely."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedssl.admission import Admission, no_fault
from fedssl.algorithm import Spec
from fedssl.bound import Bound
from fedssl.data.progress import Say, say_on_stderr
from fedssl.errors import FedsslError, RunError
from fedssl.evaluate import Evaluation
from fedssl.experiment import Experiment
from fedssl.feature_check import FeatureCheck
from fedssl.federate import Round, Runtime, federate
from fedssl.memory import Remembered
from fedssl.models import models_of
from fedssl.probes import PROBES
from fedssl.provenance import code
from fedssl.report.checked_lines import repair as repair_log
from fedssl.report.collapse import Collapse
from fedssl.report.progress import Progress, telling
from fedssl.report.rounds import RoundsLog, read_rounds, record
from fedssl.score import Score
from fedssl.store import Snapshot, Store
from fedssl.tree import Mean, to_device
from fedssl.upload_weights import ImageCounts

STOPPING = "stopping: the step under way ends, and what is finished is saved; the same command goes on"


class Interrupted(FedsslError):  # noqa: N818 - a request, not an error
    """Ctrl-C or a termination signal; the last finished round is saved."""

    exit_code = 130


class Carrier(NamedTuple):
    """A runtime, and what a run needs of it besides."""

    runtime: Runtime
    counts: ImageCounts
    remembered: Callable[[], Mapping[str, Remembered]]  # by clients at the end of a round, as far as it lies here
    close: Callable[[], None]
    quorum: Callable[[int], int] = lambda asked: 0  # number of clients asked -> valid uploads required
    finished: Callable[[Round], None] = lambda round: None  # called after each round


def found(folder: Path, store: Store, say: Say) -> Snapshot | None:
    """Where a run directory stands; None if nothing has begun there. Refused if what is there does not fit together."""
    snapshot = store.resume(say)
    rounds = repair_log(folder / "rounds.jsonl", say)
    if snapshot is None and rounds:
        raise RunError(f"{folder} has finished rounds but no checkpoint to go on from; nothing was changed")
    if snapshot is not None and not (folder / "experiment.toml").is_file():
        raise RunError(f"{folder} has checkpoints but no experiment.toml that says of what; nothing was changed")
    if snapshot is not None and rounds < snapshot.rounds:
        say(f"{folder / 'rounds.jsonl'} has lost lines: {rounds} of {snapshot.rounds} rounds are left")
    return snapshot


def refuse_fruitless(folder: Path) -> None:
    """A run in which no round had a sound upload has no model to show."""
    failed = [line["failed"] for line in read_rounds(folder / "rounds.jsonl")]
    if failed and all(failed):
        raise RunError(f"{folder}: no round had a sound upload, so nothing was learned; rounds.jsonl says why")


def warn(experiment: Experiment, say: Say) -> None:
    """Print the algorithm's warning. `--quiet` does not silence it: it is about private data."""
    warning = experiment.algorithm.warning
    if warning is not None:
        say(f"warning: {warning}")


@dataclass(frozen=True)
class Loop:
    """One process's turn at a run."""

    experiment: Experiment
    folder: Path
    store: Store
    evaluation: Evaluation
    device: torch.device  # where sites are merged and models measured
    clients: Sequence[str]  # those that have images, in order
    checkpoint_every: float  # seconds, at least
    say: Say

    def begin(self, sites: Mapping[str, Any]) -> Snapshot:
        """The state before the first round, saved at once: a run that has begun is never mistaken for a new one."""
        snapshot = Snapshot(0, sites, {})
        self.store.save(snapshot)
        self.store.wait()
        return snapshot

    def run(
        self,
        last: Snapshot,
        resumed: bool,
        wire: Mapping[str, Spec],
        carry: Callable[[Progress], Carrier],
        title: str,
        quiet: bool,
    ) -> None:
        """The rounds after `last`; `carry` makes the runtime, given whom to tell of clients that have finished."""
        code()  # of now: files may be edited while this runs
        if self.evaluation.images.note and self.experiment.probe.every:
            self.say(self.evaluation.images.note)
        warn(self.experiment, say_on_stderr if quiet else self.say)
        log = RoundsLog(self.folder / "rounds.jsonl", last.rounds, say=self.say)
        collapse = Collapse(read_rounds(self.folder / "rounds.jsonl"))
        if resumed:
            self.say(f"going on after round {last.rounds} of {self.experiment.rounds}")
        asked = self.experiment.topology.plan(self.clients, 0, self.experiment.seed).home
        with telling(title, self.experiment.rounds, last.rounds, len(asked), quiet) as progress:
            carrier = carry(progress)
            saved, begun = time.monotonic(), time.perf_counter()
            unsaved, every = False, self.checkpoint_every
            try:
                for round in self._rounds(carrier, wire, last):
                    done = Snapshot(round.number + 1, round.sites, carrier.remembered(), round.usual)
                    seconds = time.perf_counter() - begun
                    try:
                        knn = self._knn(done)
                    except Exception:  # a probe that fails takes no round with it
                        log.append(self._line(round, None, seconds))
                        last, unsaved = done, True
                        raise
                    line = self._line(round, knn, seconds)
                    log.append(line)
                    last, unsaved = done, True  # at once: a signal from here on saves this round
                    progress.round(line)
                    carrier.finished(round)
                    if warning := collapse.see(line):
                        self.say(warning)
                    if time.monotonic() - saved >= every and not (every and self.store.busy):  # 0: in every round
                        self.store.save(last)
                        saved, unsaved = time.monotonic(), False
                    begun = time.perf_counter()
            except KeyboardInterrupt:
                self.say(STOPPING)  # at once: what follows may take as long as a step
                raise Interrupted(
                    f"stopped after round {last.rounds} of {self.experiment.rounds}; the same command goes on"
                ) from None
            finally:
                self._close(carrier, last if unsaved else None)

    def _rounds(self, carrier: Carrier, wire: Mapping[str, Spec], last: Snapshot) -> Iterator[Round]:
        e = self.experiment
        sites = {site: to_device(tree, self.device) for site, tree in last.sites.items()}
        features = FeatureCheck(e, self.evaluation.data.train.image, self.device)
        admission = Admission(
            bound=Bound(e.guard, lambda round: e.train.rate(round, e.rounds), last.usual),
            min_uploads=e.min_uploads,
            quorum=carrier.quorum,
            max_share=e.guard.max_share or carrier.counts.max_share,
            counts=carrier.counts,
            model_fault=features if e.topology.merges else no_fault,
        )
        return federate(
            e.algorithm, e.topology, carrier.runtime, wire, sites, Mean, e.seed, last.rounds, e.rounds, admission
        )

    def _line(self, round: Round, knn: Score | None, seconds: float) -> dict[str, Any]:
        rounds, accuracies = self.experiment.rounds, (None, None) if knn is None else (knn.mean, knn.common)
        rate = self.experiment.train.rate(round.number, rounds)
        probe = self.experiment.probe
        settings = {key: getattr(probe, key) for key in PROBES["knn"].uses}
        return record(
            round,
            rounds,
            rate,
            seconds,
            *accuracies,
            knn_settings=None if knn is None else settings,
            warning=self.experiment.algorithm.warning,
        )

    def _knn(self, done: Snapshot) -> Score | None:
        every = self.experiment.probe.every
        due = every and (done.rounds % every == 0 or done.rounds == self.experiment.rounds)
        if not due or not self.evaluation.images.possible:
            return None
        models = models_of(self.experiment, done.sites, done.memory, self.device)
        return self.evaluation.measure(models, ("knn",), models.apart)["knn"] if models else None

    def _close(self, carrier: Carrier, unsaved: Snapshot | None) -> None:
        """End what still goes on, then save what is finished; another Ctrl-C must not cut that short."""
        with _signals_ignored():
            carrier.close()
            if unsaved is not None:
                self.store.save(unsaved)
            self.store.wait()


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
