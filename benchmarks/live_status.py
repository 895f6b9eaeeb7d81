"""Compare the CPU time of a run with and without live.json, the status for `fedssl watch`.

    python -m benchmarks.live_status [--repeats 7] [--out results/speed/live_status.json]

Two experiments train on one thread: five clients with a thousand images each, and a thousand
clients with five images each, which write the largest file. In one process, each run with the file
is preceded and followed by a run without it; CPU times are sums over all threads of the process.
The result is the median and the range of the ratios of CPU time with and without the file. The
ratios of the two runs without the file measure the noise. `thread_share` is the fraction of CPU
time spent in the thread that writes the file: other processes on the machine hardly affect it. It
excludes the time that training threads spend on recording events.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import fedssl
from benchmarks.machine import machine
from fedssl.runs.live_status import LiveStatus

OUT = Path("results/speed/live_status.json")
SETTINGS = {
    "train.workers": 1,
    "probe.every": 0,
    "probe.baselines": [],
    "probe.linear": False,
    "probe.picture": False,
}
RUNS: dict[str, dict[str, Any]] = {
    "5 clients, 1,000 images each": {"rounds": 1},
    "1,000 clients, 5 images each": {
        "rounds": 1,
        "clients": 1000,
        "train.batch": 4,
        "partition.name": "iid",
    },
}


@contextmanager
def without_file() -> Iterator[None]:
    """Disable live.json in the block: record no events, and start no thread."""
    names = ("begin_round", "start_client", "finish_client", "measure", "warn", "__exit__")
    replaced: dict[str, Any] = dict.fromkeys(names, _nothing)
    replaced["__enter__"] = lambda self: self
    with mock.patch.multiple(LiveStatus, **replaced):
        yield


def _nothing(*arguments: object) -> None:
    """Do nothing."""


@contextmanager
def timed_threads(seconds: list[float]) -> Iterator[None]:
    """Append the CPU seconds of each thread that writes a file in the block."""
    write_repeatedly = LiveStatus._write_repeatedly

    def timed(self: LiveStatus) -> None:
        write_repeatedly(self)
        seconds.append(time.thread_time())

    with mock.patch.object(LiveStatus, "_write_repeatedly", timed):
        yield


def cpu_seconds(settings: dict[str, Any]) -> float:
    """Return the CPU seconds of a run."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        fedssl.run("demo", Path(folder) / "run", "cpu", quiet=True, set=SETTINGS | settings)
        return time.process_time() - start


def compare(settings: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Return the ratios of CPU times: with and without the file, and of two runs without it."""
    ratios = []
    noise = []
    shares = []
    threads: list[float] = []
    cpu_seconds(settings)  # the first run imports and allocates
    for _ in range(repeats):
        with without_file():
            first = cpu_seconds(settings)
        with timed_threads(threads):
            recorded = cpu_seconds(settings)
        with without_file():
            second = cpu_seconds(settings)
        shares.append(sum(threads) / recorded)
        threads.clear()
        noise.append(second / first)
        ratios.append(recorded / ((first + second) / 2))
        shown = f"with: {ratios[-1]:.4f}  without: {noise[-1]:.4f}  thread: {shares[-1]:.5f}"
        print(f"  {shown}", flush=True)
    return {
        "ratio": summary(ratios),
        "noise": summary(noise),
        "thread_share": round(statistics.median(shares), 5),
        "cpu_seconds": round(second, 2),
    }


def summary(ratios: list[float]) -> dict[str, float]:
    """Return the median and the range."""
    values = {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
    return {name: round(value, 4) for name, value in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {"machine": machine()}
    for name, settings in RUNS.items():
        print(name, flush=True)
        results[name] = compare(settings, options.repeats)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
