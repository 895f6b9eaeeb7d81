"""Record what happens in the round that is under way, in live.json.

The threads that train only store a few values. A separate thread writes the file, at most once
per second. A file that cannot be written never disturbs training.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fedssl.core.errors import FedsslError
from fedssl.core.state.tree import Tree
from fedssl.engine.federate import Runtime
from fedssl.engine.uploads.records import Reply, sanitize
from fedssl.runs.live_file import (
    LiveClient,
    LiveState,
    LiveWarning,
    remove_live,
    write_live,
)
from fedssl.runs.progress import Progress
from fedssl.runs.time_left import Pace
from fedssl.training.step_count import StepCount
from fedssl.training.trainer import Trainer

THREAD = "live status"  # the name of the thread that writes
INTERVAL = 1.0  # seconds between two writes, at least
# A write that took long is followed by a longer pause: the thread uses at most 1/400 of a core.
PAUSE_PER_WRITE = 400.0
MAX_PAUSE = 20.0  # seconds: a file that is older than a minute looks like a stalled process
HEARTBEAT = 5.0  # seconds after which the file is written although nothing has changed
MAX_WARNINGS = 20

Connected = Callable[[], Mapping[str, float]]  # client -> when its node was seen last


class LiveStatus:
    """Writes live.json while it is entered. All methods may be called from any thread.

    `private`: nothing that single clients do in a round is recorded, as in the rounds log.
    """

    def __init__(
        self,
        folder: Path,
        rounds: int,
        pace: Pace | None = None,
        private: bool = False,
        connected: Connected | None = None,
        *,
        interval: float = INTERVAL,
    ) -> None:
        now = time.time()
        self._folder = folder
        self._pace = pace
        self._connected = connected
        self._interval = interval
        self._lock = threading.Lock()
        self._state = LiveState("training", now, now, rounds=rounds, private=private)
        self._clients: dict[str, LiveClient] = {}
        self._counts: dict[str, StepCount] = {}  # of the clients in training
        self._steps = 0  # of all clients in training, when the file was written last
        self._written: LiveState | None = None
        self._written_at = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write_repeatedly, name=THREAD, daemon=True)

    def __enter__(self) -> LiveStatus:
        """Begin to write."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop writing. Remove the file if the last round is finished, else record why not."""
        self._end.set()
        self._thread.join()
        state = self._state
        if problem is None and state.phase != "joining":
            self._set(phase="trained")
            if state.round >= state.rounds:
                with contextlib.suppress(OSError):
                    remove_live(self._folder)
                return
        elif problem is not None and state.phase != "stopped":
            self._set(phase="failed", reason=_reason(problem))
        self._write()

    # -- events --

    def wait_for_clients(self, expected: int) -> None:
        """Record that a server waits for its clients."""
        self._set(phase="joining", expected=expected)

    def begin_round(self, round: int, clients: Sequence[str]) -> None:
        """Record which clients are asked in a round, counted from 0."""
        first = LiveClient("training" if self._state.private else "waiting")
        with self._lock:
            self._clients = dict.fromkeys(clients, first)
            self._counts = {}
        self._set(phase="training", round=round + 1, round_started=time.time(), replied=0)

    def start_client(self, client: str, trainer: Trainer | None = None) -> None:
        """Record that a client trains; its steps are those of the trainer, if there is one."""
        if self._state.private:
            return
        with self._lock:
            self._clients[client] = LiveClient("training", time.time())
            if trainer is not None:
                trainer.step_count.begin(0, 0)
                self._counts[client] = trainer.step_count
        self._set()

    def finish_client(self, reply: Reply) -> None:
        """Record that a client has replied, or why there is no upload."""
        finished = _finished(reply)
        with self._lock:
            replied = self._state.replied + 1
            self._state = self._state._replace(changed=time.time(), replied=replied)
            if not self._state.private:
                self._counts.pop(reply.client, None)
                self._clients[reply.client] = finished

    def measure(self) -> None:
        """Record that the clients of the round are done, and its model is measured."""
        self._set(phase="measuring")

    def warn(self, text: str) -> None:
        """Record a warning about the last round."""
        warnings = (*self._state.warnings, LiveWarning(self._state.round, text))
        self._set(warnings=warnings[-MAX_WARNINGS:])

    def stop(self) -> None:
        """Record that training was asked to stop."""
        self._set(phase="stopped")

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._state = self._state._replace(changed=time.time(), **changes)

    # -- the writing thread --

    def _write_repeatedly(self) -> None:
        pause = 0.0
        while not self._end.wait(pause):
            began = time.thread_time()
            self._write()
            wanted = PAUSE_PER_WRITE * (time.thread_time() - began)
            pause = max(self._interval, min(wanted, MAX_PAUSE))

    def _write(self) -> None:
        """Write the file if its contents have changed, or some time ago."""
        state = self._sample()
        now = time.monotonic()
        if state == self._written and now - self._written_at < HEARTBEAT:
            return
        with contextlib.suppress(OSError):
            write_live(self._folder, state)
            self._written = state
            self._written_at = now

    def _sample(self) -> LiveState:
        """Return the present contents of the file."""
        with self._lock:
            state = self._state
            clients = dict(self._clients)
            counts = dict(self._counts)
        steps = 0
        for client, count in counts.items():
            clients[client] = clients[client]._replace(
                steps=count.done, planned=count.planned, images=count.done * count.images_per_step
            )
            steps += count.done
        if steps != self._steps:
            self._steps = steps
            self._set()
            state = self._state
        connected = None
        if self._connected is not None:
            connected = dict(self._connected())
        return state._replace(clients=clients, connected=connected, **self._time_left())

    def _time_left(self) -> dict[str, Any]:
        """Return the estimate of the progress display."""
        if self._pace is None:
            return {}
        left = self._pace.left
        if left is None:
            return {}
        return {"ends": round(time.time() + left), "ends_of": self._pace.part}


def _finished(reply: Reply) -> LiveClient:
    """Return the entry of a client that has replied."""
    if reply.error is not None:
        return LiveClient("failed", time.time(), reason=sanitize(reply.error))
    images = 0
    steps = 0
    if reply.metrics is not None:
        images = reply.metrics.images
        steps = reply.metrics.steps
    return LiveClient("replied", time.time(), steps, steps, images)


def _reason(problem: BaseException) -> str:
    """Return why training failed. Errors that are not for users may contain private data."""
    if isinstance(problem, FedsslError):
        return str(problem)
    return type(problem).__name__


class ObservedProgress:
    """A progress display whose events are recorded in live.json as well."""

    def __init__(self, display: Progress, status: LiveStatus) -> None:
        self._display = display
        self.status = status

    def start(self, client: str, trainer: Trainer | None = None) -> None:
        """Record that a client trains."""
        self.status.start_client(client, trainer)

    def client(self, reply: Reply) -> None:
        """Count a client that has finished its part of the round."""
        self.status.finish_client(reply)
        self._display.client(reply)

    def round(self, line: dict[str, Any]) -> None:
        """Show a finished round."""
        self._display.round(line)


class ObservedRuntime:
    """A runtime whose rounds are recorded in live.json."""

    def __init__(self, runtime: Runtime, status: LiveStatus) -> None:
        self._runtime = runtime
        self._status = status

    @property
    def clients(self) -> Sequence[str]:
        """The clients that have images, in order."""
        return self._runtime.clients

    def exchange(
        self, round: int, clients: Sequence[str], message: Callable[[str], Tree]
    ) -> Iterator[Reply]:
        """Record that a round begins, and run it."""
        self._status.begin_round(round, clients)
        return self._runtime.exchange(round, clients, message)
