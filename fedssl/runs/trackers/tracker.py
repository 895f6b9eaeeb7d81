"""The base class of trackers: which rounds are sent when, and what happens if sending fails.

The rounds log decides what a tracker shows. At every start of a run, the finished rounds that the
tracker does not have are sent from the log. A round that was lost after the last checkpoint, and is
trained again, replaces the earlier one if the tracker can remove it, and else is not sent again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from fedssl.core.console import Notify, ignore_message, print_to_stderr
from fedssl.core.version import __version__
from fedssl.experiment.experiment import Experiment
from fedssl.runs.callbacks import Callback, RunInfo
from fedssl.runs.rounds_log import read_rounds
from fedssl.runs.trackers.numbers import ClientNames, final_numbers, round_numbers
from fedssl.runs.trackers.state import State, hash_results, read_state, write_state

TAGS = ("method", "algorithm", "topology", "data")


class Tracker(Callback, ABC):
    """Sends the rounds and results of a run to one library."""

    def __init__(self, name: str, notify: Notify) -> None:
        self.name = name
        self.ended = False  # the results are sent
        self._notify = notify
        self._state = State()
        self._sent = 0  # the last round that was sent
        self._results: str | None = None  # a hash of the results that were sent
        self._clients = ClientNames()
        self._is_open = False
        self._failed = False

    # -- what a library does --

    @classmethod
    def check(cls) -> None:
        """Raise ConfigError if the library cannot be used as it is configured."""

    @abstractmethod
    def open(self, run: RunInfo, state: State) -> State:
        """Start or continue the tracker's run with the settings of the experiment.

        Return the state with the tracker's id, and with the last round that it has.
        """

    @abstractmethod
    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send numbers at a step."""

    def stored(self, step: int) -> int:
        """Return the last step that is not lost if the process is killed now; `step` was sent."""
        return step

    @abstractmethod
    def log_results(self, step: int, numbers: Mapping[str, float], verdict: str) -> None:
        """Send the final numbers, and the verdict as text; "" without a verdict."""

    @abstractmethod
    def disconnect(self) -> None:
        """Store what was sent and end the connection; called if `open` has succeeded."""

    @abstractmethod
    def location(self) -> str:
        """Return where the run can be seen, as the end of a line of output."""

    # -- what a run calls --

    def on_start(self, run: RunInfo) -> None:
        """Continue the tracker's run, and send the finished rounds that it does not have."""
        self._attempt(self._start, run)

    def on_round(self, run: RunInfo, record: Mapping[str, Any]) -> None:
        """Send a round, unless the tracker has it already."""
        self._attempt(self._send, record)

    def on_end(self, run: RunInfo, results: Mapping[str, Any]) -> None:
        """Send the results, unless the tracker has them already."""
        self._attempt(self._end, run, results)

    def close(self) -> None:
        """Disconnect."""
        if self._is_open:
            self._is_open = False
            try:
                self.disconnect()
                self._record(rounds=self._sent, results=self._results)
            except Exception as problem:
                self._warn(problem)

    def _attempt(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do something unless an earlier attempt failed; a failure is a warning."""
        if self._failed:
            return
        try:
            action(*arguments)
        except Exception as problem:
            self._warn(problem)

    def _warn(self, problem: Exception) -> None:
        """Print that tracking has failed, once."""
        if not self._failed:
            self._failed = True
            reason = (str(problem) or type(problem).__name__).partition("\n")[0][:300]
            print_to_stderr(
                f"tracking with {self.name} failed ({reason}). The run continues without it; the "
                f"next start of this run with {self.name} sends what is missing"
            )

    def _start(self, run: RunInfo) -> None:
        self._folder = run.folder
        self._state = read_state(run.folder, self.name)
        self._sent = self._state.rounds
        self._results = self._state.results
        has_all = self._sent >= run.finished >= run.experiment.rounds
        if not has_all:
            self._open(run)
        self._send_missing(run)

    def _open(self, run: RunInfo) -> None:
        self._state = self.open(run, self._state)
        self._sent = self._state.rounds
        self._is_open = True
        self._record()
        self._notify(f"tracking with {self.name}: {self.location()}")

    def _send_missing(self, run: RunInfo) -> None:
        """Send finished rounds from the log, which has the names of the first clients too."""
        for record in read_rounds(run.folder / "rounds.jsonl", ignore_message):
            if record["round"] > run.finished:
                return
            if self._clients.full and self._sent >= run.finished:
                return
            self._send(record)

    def _send(self, record: Mapping[str, Any]) -> None:
        self._clients.add(record)
        if record["round"] > self._sent:
            self.log(record["round"], round_numbers(record, self._clients))
            self._sent = record["round"]
            self._record(rounds=self.stored(self._sent))

    def _record(self, **changes: Any) -> None:
        """Change fields of the state and write it."""
        self._state = self._state._replace(**changes)
        write_state(self._folder, self.name, self._state)

    def _end(self, run: RunInfo, results: Mapping[str, Any]) -> None:
        digest = hash_results(results)
        if self._state.results != digest:
            if not self._is_open:
                self._open(run)
            verdict = results.get("verdict", {}).get("sentence", "")
            step = results.get("rounds", run.experiment.rounds)
            self.log_results(step, final_numbers(results), verdict)
            self._results = digest
        self.ended = True


def run_name(run: RunInfo) -> str:
    """Return the name of a run: that of its directory, after the title unless that begins it."""
    name = run.folder.resolve().name
    return name if name.startswith(run.title) else f"{run.title}/{name}"


def tags_of(experiment: Experiment) -> dict[str, str]:
    """Return what is trained, in a word each, and the version of fedssl."""
    tables = experiment.to_dict()
    tags = {table: str(tables[table]["name"]) for table in TAGS}
    return {**tags, "seed": str(experiment.seed), "fedssl": __version__}
