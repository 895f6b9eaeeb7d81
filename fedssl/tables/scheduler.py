"""Run trainings in worker processes: one process per device, one training at a time in each."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedssl.tables.plan import Measure, Training
from fedssl.tables.worker import LOG_FILE

STOP_TIMEOUT = 30.0  # seconds that a process has to save its run
WORKER = [sys.executable, "-c", "from fedssl.tables.worker import main; main()"]
STOPPED = "stopped"

Problems = dict[str, str]  # what went wrong, by the file of the measurement


def devices(requested: torch.device) -> list[str]:
    """Return the devices that trainings are spread over: `cuda` is each CUDA device on its own."""
    if str(requested) == "cuda" and torch.cuda.device_count() > 1:
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [str(requested)]


class Pool:
    """Trainings in worker processes.

    `running` has the current trainings and when they began; `ended` has those that ended, with
    their problems.
    """

    def __init__(
        self, todo: Mapping[Training, Sequence[Measure]], devices: Iterable[str], data_dir: Path
    ) -> None:
        self._data_dir = data_dir
        self._todo: queue.SimpleQueue[tuple[Training, Sequence[Measure]]] = queue.SimpleQueue()
        for item in todo.items():
            self._todo.put(item)
        self.running: dict[Training, float] = {}
        self.ended: queue.SimpleQueue[tuple[Training, Problems]] = queue.SimpleQueue()
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._serve, args=(device,), daemon=True) for device in devices
        ]
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> bool:
        """True while a training runs or waits."""
        return any(thread.is_alive() for thread in self._threads)

    def next_ended(self, timeout: float) -> tuple[Training, Problems] | None:
        """Return a training that has ended and its problems.

        None if none ends within `timeout` seconds, or after the last one.
        """
        with contextlib.suppress(queue.Empty):
            return self.ended.get(timeout=timeout if self.busy else 0.0)
        return None

    def stop(self) -> None:
        """End all trainings after they have saved their last finished round.

        Processes that take longer than STOP_TIMEOUT are killed, with all processes they have
        started. The files of a run are complete at any moment.
        """
        self._stopped = True
        try:
            for process in list(self._processes.values()):
                # The worker handles SIGTERM like Ctrl-C; one that still imports ends silently.
                process.terminate()
            deadline = time.monotonic() + STOP_TIMEOUT
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        finally:  # also after a second Ctrl-C
            for process in list(self._processes.values()):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _serve(self, device: str) -> None:
        """Run trainings on one device until none are left."""
        while not self._stopped:
            try:
                training, measures = self._todo.get_nowait()
            except queue.Empty:
                break
            self.running[training] = time.monotonic()
            try:
                problems = self._train(device, training, measures)
            except OSError as problem:  # out of memory or file descriptors
                problems = _same_problem(measures, f"no process to train in: {problem}")
            del self.running[training]
            self.ended.put((training, problems))
        if device in self._processes:
            self._close_process(device)

    def _train(self, device: str, training: Training, measures: Sequence[Measure]) -> Problems:
        """Train and measure in the process of a device; return what went wrong.

        A process that dies affects no other training: the next one gets a new process.
        """
        process = self._processes.get(device) or self._start_process(device)
        if self._stopped:  # stop() ran before the process existed and could not terminate it
            return _same_problem(measures, STOPPED)
        job = _job(training, measures, device, data_dir=self._data_dir)
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        if answer.endswith("\n"):
            return dict(json.loads(answer))
        self._close_process(device)
        return _same_problem(measures, self._exit_problem(process, training))

    def _exit_problem(self, process: subprocess.Popen[str], training: Training) -> str:
        if self._stopped:
            return STOPPED
        return _describe_exit(process.returncode, training.folder)

    def _start_process(self, device: str) -> subprocess.Popen[str]:
        # In a new session: Ctrl-C reaches the process through stop(), once.
        process = subprocess.Popen(
            WORKER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes[device] = process
        return process

    def _close_process(self, device: str) -> None:
        """Close the standard input of a process, which ends it, and wait.

        It stays in `_processes` until it has ended, so that stop() can kill it.
        """
        process = self._processes[device]
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        process.wait()
        del self._processes[device]


def _job(
    training: Training, measures: Sequence[Measure], device: str, *, data_dir: Path
) -> dict[str, Any]:
    return {
        "name": training.name,
        "changes": dict(training.changes),
        "folder": str(training.folder),
        "key": training.key,
        "device": device,
        "data_dir": str(data_dir),
        "measures": [
            {
                "file": measure.file,
                "probe": measure.probe,
                "settings": dict(measure.settings),
                "on": measure.on,
            }
            for measure in measures
        ],
    }


def _same_problem(measures: Iterable[Measure], problem: str) -> Problems:
    return {measure.file: problem for measure in measures}


def _describe_exit(code: int, folder: Path) -> str:
    if code >= 0:
        end = f"ended with code {code}"
    else:
        end = f"was killed ({signal.Signals(-code).name})"
    if code == -signal.SIGKILL:
        end += ", perhaps because memory ran out"
    return f"its process {end}; see {folder / LOG_FILE}, and run the same command again to resume"
