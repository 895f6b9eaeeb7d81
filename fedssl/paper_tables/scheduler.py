"""Run the trainings of a table: each is `fedssl run`, then `fedssl evaluate` for each measurement.

Every device has one training at a time. Commands are processes, so that one that dies affects no
other training. Their output is appended to a log in the training's folder.
"""

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

from fedssl.core.console import HIDE_NAMES, print_to_stderr
from fedssl.core.errors import FedsslError
from fedssl.core.files.lock import locked, make_private
from fedssl.core.provenance import code
from fedssl.paper_tables import results_on_disk
from fedssl.paper_tables.log_figures import LOG_METRICS
from fedssl.paper_tables.plan import Measure, Training
from fedssl.runs.rounds_log import read_rounds

# The program fedssl. It ends with this process, even if this process is killed.
PROGRAM = [
    sys.executable,
    "-c",
    "from fedssl.core.signals import exit_when_stdin_closes; exit_when_stdin_closes(); "
    "from fedssl.cli.main import main; main()",
]
LOG_FILE = "log.txt"
STOP_TIMEOUT = 30.0  # seconds that a process has to save its run
STOPPED = "stopped"

Problems = dict[str, str]  # what went wrong, by the file of the measurement


class CommandError(FedsslError):
    """A command of a training failed; the message is the reason that a table shows."""


def devices(requested: torch.device) -> list[str]:
    """Return the devices that trainings are spread over: `cuda` is each CUDA device on its own."""
    if str(requested) == "cuda" and torch.cuda.device_count() > 1:
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [str(requested)]


class Pool:
    """Trainings that run at the same time, one on each device.

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
        self._processes: dict[str, subprocess.Popen[bytes]] = {}  # by device
        self._stopped = False
        self._threads: dict[str, threading.Thread] = {}  # by device
        for device in devices:
            self._threads[device] = threading.Thread(
                target=self._serve, args=(device,), daemon=True
            )
        for thread in self._threads.values():
            thread.start()

    @property
    def busy(self) -> bool:
        """True while a training runs or waits."""
        return any(thread.is_alive() for thread in self._threads.values())

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
        processes = dict(self._processes)
        try:
            for process in processes.values():
                process.terminate()
            deadline = time.monotonic() + STOP_TIMEOUT
            # Threads without a process wait for another table, and end with this process.
            for device in processes:
                self._threads[device].join(max(0.0, deadline - time.monotonic()))
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
            except (FedsslError, OSError) as problem:
                problems = {measure.file: str(problem) for measure in measures}
            del self.running[training]
            self.ended.put((training, problems))

    def _train(self, device: str, training: Training, measures: Sequence[Measure]) -> Problems:
        """Train if needed, then measure; return the problems of measurements that failed."""
        folder = training.folder
        make_private(folder)
        (folder / results_on_disk.MEASURES).mkdir(exist_ok=True)
        # Another table may run the same training: wait until it has finished. The run directory
        # has its own lock.
        with locked(folder / results_on_disk.MEASURES, wait=print_to_stderr):
            # Also for a finished run: it trains nothing then, but rejects images that have changed.
            self._run_command(device, folder, training.run_command(device, self._data_dir))
            if results_on_disk.read_results(folder, training.key) is None:
                raise CommandError(
                    f"{training.name} has changed since the table was started: start it again"
                )
            problems = {}
            for measure in measures:
                if results_on_disk.find_measurement(training, measure) is not None:
                    continue
                try:
                    self._measure(device, training, measure)
                except (FedsslError, OSError) as problem:
                    problems[measure.file] = str(problem)
            return problems

    def _measure(self, device: str, training: Training, measure: Measure) -> None:
        """Measure a trained model, or read a figure from its log, and write the measurement."""
        start = time.perf_counter()
        if measure.probe in LOG_METRICS:
            read_figure = LOG_METRICS[measure.probe]
            rounds = read_rounds(training.folder / "rounds.jsonl")
            figure = read_figure(rounds, **dict(measure.settings))
            values: dict[str, Any] = {"code": code(), "value": figure}
        else:
            command = training.evaluate_command(measure, device, self._data_dir)
            output = self._run_command(device, training.folder, [*command, "--json"])
            score = json.loads(output)
            values = {"code": score["code"], "value": score["mean"]} | score
        measurement = {
            "experiment": training.key,
            "probe": measure.probe,
            "settings": dict(measure.settings),
            "on": measure.on,
            "seconds": round(time.perf_counter() - start, 1),
        }
        results_on_disk.write_measurement(training.folder, measure.file, measurement | values)

    def _run_command(self, device: str, folder: Path, command: Sequence[str]) -> bytes:
        """Return the standard output of a fedssl command; raise CommandError if it fails."""
        with (folder / LOG_FILE).open("ab") as log:
            log_begin = log.tell()
            process = self._start_process(device, command, log)
            if self._stopped:  # stop() may have run before the process existed
                process.terminate()
            assert process.stdin is not None
            assert process.stdout is not None
            with process.stdin, process.stdout:
                output = process.stdout.read()
                process.wait()
            del self._processes[device]
            log.write(output)
        if process.returncode == 0:
            return output
        if self._stopped:
            raise CommandError(STOPPED)
        raise CommandError(_describe_exit(process.returncode, folder / LOG_FILE, log_begin))

    def _start_process(
        self, device: str, command: Sequence[str], log: Any
    ) -> subprocess.Popen[bytes]:
        if self._stopped:
            raise CommandError(STOPPED)
        try:
            # In a new session: Ctrl-C reaches the process through stop(), once.
            process = subprocess.Popen(  # nosec B603 # this Python, no shell
                [*PROGRAM, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, HIDE_NAMES: "1"},
                start_new_session=True,
            )
        except OSError as problem:  # out of memory or file descriptors
            raise CommandError(f"the process of a training cannot be started: {problem}") from None
        self._processes[device] = process
        return process


def _describe_exit(code: int, log: Path, log_begin: int) -> str:
    """Return why a command failed: its last message in the log, or how its process ended."""
    if code > 0:
        text = log.read_bytes()[log_begin:].decode(errors="replace").strip()
        _, found, message = f"\n{text}".rpartition("\nfedssl: ")
        if found:
            return " ".join(message.split())
        if text:  # the last line of a traceback
            return text.splitlines()[-1]
        end = f"ended with code {code}"
    else:
        end = f"was killed ({signal.Signals(-code).name})"
    if code == -signal.SIGKILL:
        end += ", perhaps because memory ran out"
    return f"its process {end}; see {log}, and run the same command again to resume"
