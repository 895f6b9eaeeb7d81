"""Callbacks: objects of the user, and trackers, that receive the rounds of a run as they finish."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedssl.core.errors import ConfigError
from fedssl.core.suggestions import suggest
from fedssl.experiment.experiment import Experiment


@dataclass(frozen=True)
class RunInfo:
    """A run, as callbacks see it.

    Attributes:
        folder: The run directory.
        title: The name of the recipe or of the experiment's file.
        experiment: All settings of the run.
        finished: Rounds that were finished before this start; 0 for a new run.
    """

    folder: Path
    title: str
    experiment: Experiment
    finished: int


class Callback:
    """Base class of callbacks; every method does nothing unless a subclass defines it.

    `fedssl.run(…, callbacks=[…])` calls them in the process and thread that runs the rounds,
    between two rounds, so that a slow callback delays training. An exception in a callback ends the
    run: finished rounds are saved first, and the same call resumes the run.
    """

    def on_start(self, run: RunInfo) -> None:
        """Called once before the first round that is left, or if no round is left."""

    def on_round(self, run: RunInfo, record: Mapping[str, Any]) -> None:
        """Called after each round of this start, with its record as in rounds.jsonl."""

    def on_end(self, run: RunInfo, results: Mapping[str, Any]) -> None:
        """Called once after the run is measured, with the content of results.json."""

    def close(self) -> None:
        """Called last, also after an error or Ctrl-C, if `on_start` was called."""


METHODS = ("on_start", "on_round", "on_end", "close")


def checked(callbacks: Sequence[Callback]) -> Sequence[Callback]:
    """Return the callbacks; raise ConfigError for other objects and for misspelled methods."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(
                "callbacks= must be a list of objects whose class is derived from "
                f"fedssl.Callback (got {type(callback).__name__})"
            )
        for name in dir(callback):
            if name.startswith("on_") and name not in METHODS:
                known = f"; known: {', '.join(METHODS)}"
                raise ConfigError(
                    f"callback {type(callback).__name__} has a method {name}, which is never "
                    f"called{suggest(name, METHODS) or known}"
                )
    return callbacks


class CallbackFailure(Exception):  # noqa: N818 - transports another exception
    """Transports an exception of a callback, so that no other handler mistakes it for its own."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(str(problem))
        self.problem = problem


@contextmanager
def original_errors() -> Iterator[None]:
    """Raise the exception of a callback itself, with its own traceback."""
    problem = None
    try:
        yield
    except CallbackFailure as failure:
        problem = failure.problem
    if problem is not None:  # here, so that its context is unchanged
        raise problem


@dataclass
class Callbacks:
    """The callbacks of one start of a run, in the order in which they are called."""

    callbacks: Sequence[Callback] = ()
    _run: RunInfo | None = None
    _started: list[Callback] = field(default_factory=list)

    def start(self, run: RunInfo) -> None:
        """Call `on_start` of each callback."""
        self._run = run
        for callback in self.callbacks:
            self._started.append(callback)
            self._call(callback, callback.on_start, run)

    def round(self, record: Mapping[str, Any]) -> None:
        """Call `on_round` of each callback; the round is in the log already."""
        for callback in self._started:
            self._call(callback, callback.on_round, self._run, record)

    def end(self, results: Mapping[str, Any]) -> None:
        """Call `on_end` of each callback."""
        for callback in self._started:
            self._call(callback, callback.on_end, self._run, results)

    def close(self) -> None:
        """Close every callback that was started, also if closing another one fails."""
        failures: list[CallbackFailure] = []
        while self._started:
            callback = self._started.pop()
            try:
                self._call(callback, callback.close)
            except CallbackFailure as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def _call(self, callback: Callback, method: Callable[..., None], *arguments: Any) -> None:
        """Call a method; raise CallbackFailure if it fails."""
        try:
            method(*arguments)
        except Exception as problem:
            name = f"{type(callback).__qualname__}.{method.__name__}"
            problem.add_note(
                f"raised by the callback {name}; finished rounds are saved, and the same call "
                "resumes the run"
            )
            raise CallbackFailure(problem) from problem
