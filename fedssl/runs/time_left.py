"""The time that a run takes in all, and the time that is left."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from fedssl.core.console import approximate_time, duration

# Seconds of training before an estimate is made: the first steps are slower than later ones.
SECONDS_BEFORE_ESTIMATE = 2.0
SECONDS_BEFORE_ESTIMATE_WITHIN_ROUND = 10.0
MAX_ERROR = 1.5  # the factor by which an estimate may be wrong without being printed again


class FollowingWork(NamedTuple):
    """Work that follows the rounds of a run."""

    baselines: float = 0.0  # time of training all baselines, relative to that of all rounds
    measuring: float = 0.0  # seconds of measuring and of the picture
    picture: bool = False  # True if a picture is drawn
    part: str = ""  # to which the time left refers; "" for the whole command
    announced: float | None = None  # seconds that were printed as the estimate of the whole
    estimated: bool = True  # print an estimate, unless an announced one is about right

    def total(self, training: float, all_rounds: float) -> float:
        """Return the seconds of training and of what follows.

        `training` is the time of the rounds that this process trains, `all_rounds` of all rounds.
        """
        return training + self.baselines * all_rounds + self.measuring

    def text(self, training: float, all_rounds: float) -> str:
        """Return "about 6 min: training 3 min, baselines 2 min, measuring and picture 60 s"."""
        parts = [f"training {approximate_time(training)}"]
        if self.baselines:
            parts.append(f"baselines {approximate_time(self.baselines * all_rounds)}")
        if self.measuring:
            measuring = "measuring and picture" if self.picture else "measuring"
            parts.append(f"{measuring} {approximate_time(self.measuring)}")
        text = f"about {approximate_time(self.total(training, all_rounds))}"
        if len(parts) > 1:
            text += f": {', '.join(parts)}"
        return text


NO_FOLLOWING_WORK = FollowingWork()
TRAINING_ONLY = FollowingWork(part="training")  # what follows is not estimated


class Estimate(NamedTuple):
    """The estimated time of a run, before its first round."""

    training: float | None  # seconds of the rounds that are left; None: unknown until some finish
    later: FollowingWork


class Pace:
    """The time left, from the client-rounds that this process has finished.

    Rounds that were finished before the run was resumed are left out.
    """

    def __init__(
        self,
        rounds: int,
        done: int = 0,
        per_round: int = 1,
        workers: int | None = None,
        *,
        later: FollowingWork = NO_FOLLOWING_WORK,
    ) -> None:
        """`per_round`: clients asked in a round; `workers` of them train at the same time."""
        self.rounds = rounds
        self.done = done
        self.per_round = per_round
        self._workers = workers or per_round
        self._later = later
        self._finished = 0  # client-rounds
        self._start = time.monotonic()
        self._estimated = not later.estimated
        self._lock = threading.Lock()

    @property
    def part(self) -> str:
        """To what the time left refers; "" for the whole command."""
        return self._later.part

    @property
    def elapsed(self) -> float:
        """Seconds since the first round of this process began."""
        return time.monotonic() - self._start

    @property
    def training_left(self) -> float | None:
        """Seconds until the last round is finished; None until two clients per worker are."""
        if self._finished < min(2 * self._workers, self.per_round):
            return None
        total = (self.rounds - self.done) * self.per_round
        return self.elapsed * max(0, total - self._finished) / self._finished

    @property
    def left(self) -> float | None:
        """Seconds until everything is finished; None until two clients per worker are."""
        training = self.training_left
        if training is None:
            return None
        return self._later.total(training, self._all_rounds)

    @property
    def _all_rounds(self) -> float:
        """Seconds of all rounds, those before a resume included."""
        return self.elapsed * self.rounds * self.per_round / max(1, self._finished)

    def finish_client(self) -> str | None:
        """Count a client; return the estimate, once, if the round is long. Thread-safe."""
        with self._lock:
            self._finished += 1
            return self._estimate(SECONDS_BEFORE_ESTIMATE_WITHIN_ROUND)

    def finish_round(self, number: int) -> str | None:
        """Count a round, from 1; return the estimate, once."""
        with self._lock:
            self._finished = (number - self.done) * self.per_round
            return self._estimate(SECONDS_BEFORE_ESTIMATE)

    def _estimate(self, seconds: float) -> str | None:
        """Return the estimate if it is new, or if the one that was announced is far from it."""
        left = self.training_left
        if self._estimated or left is None or self.elapsed < seconds:
            return None
        self._estimated = True
        if not left:
            return None
        training = self.elapsed + left
        announced = self._later.announced
        if announced is not None:
            ratio = self._later.total(training, self._all_rounds) / announced
            if 1 / MAX_ERROR < ratio < MAX_ERROR:
                return None
        part = f" of {self._later.part}" if self._later.part else ""
        return f"estimated time{part}: {self._later.text(training, self._all_rounds)}"

    def left_text(self) -> str:
        """Return the time left and to what it refers; "" if it is unknown or nothing is left."""
        if not self.left or not round(self.left):
            return ""
        part = f" of {self._later.part}" if self._later.part else ""
        return f"{duration(self.left)} left{part}"

    def summary(self) -> str:
        """Return the time elapsed and the time left."""
        text = f"{duration(self.elapsed)} elapsed"
        if self.left_text():
            text += f", {self.left_text()}"
        return text
