"""The process that trains and measures, one after the other, what it is told.

It reads one line of JSON for each training from standard input and answers with one line when it is done: an object
with a sentence for each measurement that went wrong. What it finds it leaves in the training's folder, with a log.
When nobody is left to tell it anything, because the process that began it has been killed, it ends at once.
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

from fedssl.data.progress import say_on_stderr
from fedssl.drive import Interrupted
from fedssl.errors import ConfigError, FedsslError
from fedssl.lock import locked, make_private
from fedssl.provenance import code
from fedssl.reproduce import found
from fedssl.run import Run, run
from fedssl.tables import LOGGED

LOG = "log.txt"

Job = dict[str, Any]  # a pool's: name, changes, folder, key, device, data_dir, measures


def work(job: Job) -> dict[str, str]:
    """Train if need be, then measure; what went wrong, by measurement."""
    folder = Path(job["folder"])
    make_private(folder)
    (folder / found.MEASURES).mkdir(exist_ok=True)
    # Another table's process may be at the same training: wait for it, and find it done. The run has its own lock.
    with locked(folder / found.MEASURES, wait=say_on_stderr):
        try:
            # Also where it is finished: then nothing is trained, but other images than it was trained on are refused.
            run(job["name"], folder, job["device"], job["data_dir"], set=job["changes"])
            if found.results(folder, job["key"]) is None:
                raise ConfigError(f"{job['name']} has changed since the table was begun; begin it again")
        except Interrupted:
            raise
        except Exception as problem:
            return dict.fromkeys((measure["file"] for measure in job["measures"]), _sentence(problem))
        return _measure_all(job, folder)


def _measure_all(job: Job, folder: Path) -> dict[str, str]:
    problems: dict[str, str] = {}
    for measure in job["measures"]:
        if found.measurement(folder, job["key"], measure["file"]) is None:
            begun = time.perf_counter()
            try:
                value = _measured(folder, job, measure)
            except Interrupted:  # of a probe that trains
                raise
            except Exception as problem:
                problems[measure["file"]] = _sentence(problem)
                continue
            said = {"experiment": job["key"], "probe": measure["probe"], "settings": measure["settings"]}
            took = {"on": measure["on"], "code": code(), "seconds": round(time.perf_counter() - begun, 1)}
            found.keep(folder, measure["file"], said | took | value)
    return problems


def _measured(folder: Path, job: Job, measure: dict[str, Any]) -> dict[str, Any]:
    at = Run(folder, job["data_dir"], job["device"])
    if measure["probe"] in LOGGED:
        read: Callable[..., float | None] = {"rounds-to": rounds_to, "divergence": divergence}[measure["probe"]]
        return {"value": read(at.rounds, **measure["settings"])}
    score = at.evaluate(measure["probe"], measure["on"], **measure["settings"])
    return {"value": score.mean} | score.details()


def rounds_to(rounds: list[dict[str, Any]], target: float) -> int | None:
    """The first round after which kNN was at least `target` %; None: no round was."""
    return next((line["round"] for line in rounds if line["knn"] is not None and line["knn"] >= target), None)


def divergence(rounds: list[dict[str, Any]], at: float) -> float | None:
    """The clients' mean divergence in the round that is this share of the way; None where none was measured."""
    if not 0 < at <= 1:
        raise ConfigError(f"at is a share of the rounds, above 0 and at most 1 (got {at})")
    line = rounds[max(0, round(at * len(rounds)) - 1)]
    known = [client["divergence"] for client in line["clients"] if client.get("divergence") is not None]
    return sum(known) / len(known) if known else None


def _sentence(problem: Exception) -> str:
    """One that a user can act on as it is; of anything else the log has all."""
    traceback.print_exc()
    return str(problem) if isinstance(problem, FedsslError | OSError) else f"{type(problem).__name__}: {problem}"


def main() -> None:
    """Answers go where standard output went; whatever else is printed goes to the log of the training."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code()  # of now: files may be edited while this runs
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    try:
        while line := jobs.get():
            job: Job = json.loads(line)
            _log_to(Path(job["folder"]))
            print(json.dumps(work(job)), file=answers, flush=True)
    except (Interrupted, KeyboardInterrupt) as stopped:
        say_on_stderr(str(stopped) or "stopped")
        os._exit(0)  # not by way of the interpreter's end, which cannot be had while a thread reads standard input


def _listen(jobs: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)  # nobody is there any more; what a run has saved is whole


def _log_to(folder: Path) -> None:
    make_private(folder)
    with (folder / LOG).open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
