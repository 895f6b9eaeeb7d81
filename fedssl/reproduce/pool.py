"""One process for each device, each at one training at a time."""

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

import torch

from fedssl.reproduce.plan import Measure, Training
from fedssl.reproduce.work import LOG

PATIENCE = 30.0  # seconds that a process has to save its run in
WORKER = [sys.executable, "-c", "from fedssl.reproduce.work import main; main()"]

STOPPED = "stopped"


def devices(asked: torch.device) -> list[str]:
    """Those that trainings are spread over: `cuda` is each of them by itself."""
    if str(asked) == "cuda" and torch.cuda.device_count() > 1:
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [str(asked)]


class Pool:
    """Trainings at work. `running` has those of now, with when they began; `ended` is what became of others."""

    def __init__(self, todo: Mapping[Training, Sequence[Measure]], devices: Iterable[str], data_dir: Path) -> None:
        self._todo, self._data_dir = queue.SimpleQueue[tuple[Training, Sequence[Measure]]](), data_dir
        for item in todo.items():
            self._todo.put(item)
        self.running: dict[Training, float] = {}
        self.ended: queue.SimpleQueue[tuple[Training, dict[str, str]]] = queue.SimpleQueue()
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._stopped = False
        self._threads = [threading.Thread(target=self._serve, args=(device,), daemon=True) for device in devices]
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def next_ended(self, patience: float) -> tuple[Training, dict[str, str]] | None:
        """A training that has ended and what went wrong with it, by measurement; None if none ends in so many seconds,
        or once the last has."""
        with contextlib.suppress(queue.Empty):
            return self.ended.get(timeout=patience if self.busy else 0.0)
        return None

    def _serve(self, device: str) -> None:
        while not self._stopped:
            try:
                training, measures = self._todo.get_nowait()
            except queue.Empty:
                break
            self.running[training] = time.monotonic()
            try:
                problems = self._ask(device, training, measures)
            except OSError as problem:  # no process can be had: memory or descriptors have run out
                problems = dict.fromkeys((measure.file for measure in measures), f"no process to train in: {problem}")
            del self.running[training]
            self.ended.put((training, problems))
        if device in self._processes:
            self._end(device)

    def _ask(self, device: str, training: Training, measures: Sequence[Measure]) -> dict[str, str]:
        """What went wrong; a process that dies takes no other training with it."""
        process = self._processes.get(device) or self._begin(device)
        if self._stopped:  # before it had begun, so that nobody has told it
            return dict.fromkeys((measure.file for measure in measures), STOPPED)
        job = {
            "name": training.name,
            "changes": dict(training.changes),
            "folder": str(training.folder),
            "key": training.key,
            "device": device,
            "data_dir": str(self._data_dir),
            "measures": [
                {"file": each.file, "probe": each.probe, "settings": dict(each.settings), "on": each.on}
                for each in measures
            ],
        }
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        if answer.endswith("\n"):
            return dict(json.loads(answer))
        self._end(device)
        said = STOPPED if self._stopped else _how_it_died(process.returncode, training.folder / LOG)
        return dict.fromkeys((measure.file for measure in measures), said)

    def _begin(self, device: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        # A session of its own: Ctrl-C reaches it through stop(), once.
        process = subprocess.Popen(WORKER, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        self._processes[device] = process
        return process

    def _end(self, device: str) -> None:
        """Without a standard input it ends; until it has, stop() knows of it."""
        process = self._processes[device]
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        process.wait()
        del self._processes[device]

    def stop(self) -> None:
        """End all trainings after saving what they have; who takes longer than PATIENCE is killed, with all that it
        has begun itself. What a run has saved is whole at any moment."""
        self._stopped = True
        try:
            for process in list(self._processes.values()):
                process.terminate()  # which work.py hears as Ctrl-C; one that still imports ends without a word
            deadline = time.monotonic() + PATIENCE
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        finally:  # also if somebody loses patience before
            for process in list(self._processes.values()):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _how_it_died(code: int, log: Path) -> str:
    how = f"ended with code {code}" if code >= 0 else f"was killed ({signal.Signals(-code).name})"
    memory = ", as it is where memory runs out" if code == -signal.SIGKILL else ""
    return f"its process {how}{memory}; {log} has what it said, and the same command goes on with it"
