"""Measure memory and time per client: 10,000 clients take 1.2 times the memory of 100.

    python -m benchmarks.scale [--clients 10 100 1000 10000] [--out results/speed/scale.json]

The time per client is about the same (AMD EPYC, one run). Runs `fedssl.run` quietly: FedAvg with
BYOL, whose clients keep their target between rounds, on disk (`train.client_memory = "disk"`).
Every client takes part in every round with four images of 8x8 pixels and makes one step; the model
has 44,392 parameters including the target. One worker and one thread. For each number of clients,
in a separate process: the median time of all rounds except the first, divided by the clients; the
CPU time of the whole run per client and round, which is less affected by other processes; and the
peak resident memory. All are also given relative to a hundred clients.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import torch

import fedssl
from benchmarks.machine import machine
from fedssl.experiment.federation_setup import build_method
from fedssl.nets import BACKBONES, CNN
from fedssl.runs.rounds_log import read_rounds

IMAGES, SIDE, REFERENCE = 4, 8, 100
RATIOS = ("ms_per_client", "cpu_ms_per_client", "peak_mib")
CLIENT_ROUNDS = 3000  # with few clients, a round is too short to be timed accurately
LEAST_ROUNDS = 4


@BACKBONES.register("tiny")
class Tiny(CNN):
    """(n, channels, h, w) to (n, 128)."""

    widths: ClassVar[tuple[int, ...]] = (16, 32)


def experiment(clients: int, rounds: int) -> fedssl.Experiment:
    return fedssl.Experiment.from_dict(
        {
            "rounds": rounds,
            "clients": clients,
            "data": {"name": "given"},
            "method": {"name": "byol", "backbone": "tiny", "hidden": 80, "dim": 40},
            "train": {"batch": IMAGES, "workers": 1, "memory": "disk"},
        }
    )


def measure(clients: int) -> dict[str, Any]:
    """Run in this process, so that its peak memory is that of one run."""
    asked = experiment(clients, max(LEAST_ROUNDS, CLIENT_ROUNDS // clients))
    stream = torch.Generator().manual_seed(0)
    images = torch.randint(
        256, (IMAGES * clients, 3, SIDE, SIDE), dtype=torch.uint8, generator=stream
    )
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        run = fedssl.run(asked, Path(folder) / "run", "cpu", dataset=images, quiet=True)
        busy, peak = time.process_time() - started, peak_memory()
        times = [line["seconds"] for line in read_rounds(run.dir / "rounds.jsonl")][1:]
        rows = (run.dir / "memory" / "rows").stat().st_size
    return {
        "clients": clients,
        "rounds": asked.rounds,
        "ms_per_client": round(1e3 * statistics.median(times) / clients, 3),
        "cpu_ms_per_client": round(1e3 * busy / clients / asked.rounds, 3),
        "peak_mib": round(peak / 2**20, 1),
        "rows_on_disk_mib": round(rows / 2**20, 1),
    }


def peak_memory() -> int:
    """Return the peak resident bytes of this process; ru_maxrss would include the parent's."""
    found = re.search(
        r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("utf-8"), re.MULTILINE
    )
    assert found
    return 1024 * int(found[1])


def apart(clients: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scale", "--one", str(clients)]
    # This Python.
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # nosec B603
    return dict(json.loads(done.stdout))


def compared(sizes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the ratios to a hundred clients, if these were measured."""
    by_clients = {size["clients"]: size for size in sizes}
    if REFERENCE not in by_clients:
        return sizes
    base = by_clients[REFERENCE]
    return [
        size | {f"{key}_ratio": round(size[key] / base[key], 2) for key in RATIOS} for size in sizes
    ]


def parameters() -> int:
    method = build_method(experiment(1, 1), (3, SIDE, SIDE), torch.device("cpu"))
    return sum(p.numel() for p in method.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--out", type=Path, default=Path("results/speed/scale.json"))
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(measure(args.one)))
        return
    sizes = []
    for clients in args.clients:
        sizes.append(apart(clients))
        print(json.dumps(compared(sizes)[-1]), file=sys.stderr, flush=True)
    report = {"machine": machine(), "parameters": parameters(), "sizes": compared(sizes)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report["sizes"], indent=2))


if __name__ == "__main__":
    main()
