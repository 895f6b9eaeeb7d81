"""The worker process of a table: train and measure one job after the other.

It reads one line of JSON per training from standard input and answers with one line: an object with
a sentence for each measurement that failed. Results and a log are left in the training's folder.
When standard input closes, because the parent process was killed, the worker ends at once.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedssl.core.console import print_to_stderr
from fedssl.core.errors import ConfigError, FedsslError
from fedssl.core.files.lock import locked, make_private
from fedssl.core.provenance import code
from fedssl.runs.local import Interrupted
from fedssl.runs.run import Run, run
from fedssl.tables import results_on_disk

LOG_FILE = "log.txt"

Job = dict[str, Any]  # from the scheduler: name, changes, folder, key, device, data_dir, measures


def run_job(job: Job) -> dict[str, str]:
    """Train if needed, then measure; return what went wrong, by the file of the measurement."""
    folder = Path(job["folder"])
    measures = folder / results_on_disk.MEASURES
    make_private(folder)
    measures.mkdir(exist_ok=True)
    # The process of another table may run the same training: wait until it has finished. The run
    # directory has its own lock.
    with locked(measures, wait=print_to_stderr):
        try:
            _train(job, folder)
        except Interrupted:
            raise
        except Exception as problem:
            sentence = _describe(problem)
            return {measure["file"]: sentence for measure in job["measures"]}
        return _measure_all(job, folder)


def _train(job: Job, folder: Path) -> None:
    # Also called for a finished run: it trains nothing then, but rejects images that have changed.
    run(job["name"], folder, job["device"], data_dir=job["data_dir"], set=job["changes"])
    if results_on_disk.read_results(folder, job["key"]) is None:
        raise ConfigError(f"{job['name']} has changed since the table was started; start it again")


def _measure_all(job: Job, folder: Path) -> dict[str, str]:
    problems: dict[str, str] = {}
    for measure in job["measures"]:
        file = measure["file"]
        if results_on_disk.read_measurement(folder, job["key"], file) is not None:
            continue
        start = time.perf_counter()
        try:
            values = _measure(folder, job, measure)
        except Interrupted:  # a probe that trains
            raise
        except Exception as problem:
            problems[file] = _describe(problem)
            continue
        measurement = {
            "experiment": job["key"],
            "probe": measure["probe"],
            "settings": measure["settings"],
            "on": measure["on"],
            "code": code(),
            "seconds": round(time.perf_counter() - start, 1),
        }
        results_on_disk.write_measurement(folder, file, measurement | values)
    return problems


def _measure(folder: Path, job: Job, measure: dict[str, Any]) -> dict[str, Any]:
    finished = Run(folder, job["data_dir"], job["device"])
    probe = measure["probe"]
    settings = measure["settings"]
    if probe in _READ_FROM_LOG:
        return {"value": _READ_FROM_LOG[probe](finished.rounds, **settings)}
    score = finished.evaluate(probe, measure["on"], **settings)
    return {"value": score.mean} | score.details()


def rounds_to(rounds: list[dict[str, Any]], target: float) -> int | None:
    """Return the first round after which kNN was at least `target` %; None if never."""
    for line in rounds:
        if line["knn"] is not None and line["knn"] >= target:
            number: int = line["round"]
            return number
    return None


def divergence(rounds: list[dict[str, Any]], at: float) -> float | None:
    """Return the clients' mean divergence in the round at this share of all rounds.

    None if no client of that round measured it.
    """
    if not 0 < at <= 1:
        raise ConfigError(f"at is a share of the rounds, above 0 and at most 1 (got {at})")
    line = rounds[max(0, round(at * len(rounds)) - 1)]
    divergences = [client.get("divergence") for client in line["clients"]]
    measured: list[float] = [value for value in divergences if value is not None]
    if not measured:
        return None
    return sum(measured) / len(measured)


# The figures of LOGGED.
_READ_FROM_LOG: dict[str, Callable[..., float | None]] = {
    "rounds-to": rounds_to,
    "divergence": divergence,
}


def _describe(problem: Exception) -> str:
    """Print the traceback to the log and return one sentence for the table."""
    traceback.print_exc()
    if isinstance(problem, FedsslError | OSError):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"


def main() -> None:
    """Answer jobs on the original standard output; redirect all other output to the log."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code()  # computed now and cached: files may be edited while this runs
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    try:
        while line := jobs.get():
            job: Job = json.loads(line)
            _redirect_output(Path(job["folder"]))
            print(json.dumps(run_job(job)), file=answers, flush=True)
    except (Interrupted, KeyboardInterrupt) as stopped:
        print_to_stderr(str(stopped) or "stopped")
        # A normal exit of the interpreter would wait for the thread that reads standard input.
        os._exit(0)


def _read_jobs(jobs: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)  # the parent process has ended; the saved files of a run are complete


def _redirect_output(folder: Path) -> None:
    make_private(folder)
    with (folder / LOG_FILE).open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
