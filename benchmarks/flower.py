"""Measure Flower's overhead: seconds per round and peak memory of each process.

    python -m benchmarks.flower [--mb 1 250] [--rounds 3] [--out results/speed/flower.json]

Two clients on loopback with TLS run FedAvg with SimCLR on 24 images of 12x12 pixels each, three
steps per round, so that almost only communication is measured. The width of the projection head is
chosen for an upload of the given MB. Everything runs on one machine: a SuperLink with messages in
memory, a ServerApp, two SuperNodes, and a process for each message. Memory is the peak resident
size of each process (VmHWM), read twice per second; Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import fedssl
from benchmarks.machine import machine
from fedssl.runs.rounds_log import read_rounds

WORDS = {  # part of a process's command line -> kind of process
    "flower-superlink": "SuperLink",
    "flwr-serverapp": "ServerApp",
    "flower-supernode": "SuperNode",
    "flwr-clientapp": "ClientApp",
}
DIM = 1024  # width of the head's output
FEATURES = 512  # width of the backbone's features for images of this size


def experiment(mb: float, rounds: int) -> fedssl.Experiment:
    """Return an experiment whose uploads have about this many megabytes.

    The head's two layers have hidden × (features + dim) weights.
    """
    hidden = max(16, round(mb * 1e6 / 4 / (DIM + FEATURES)))
    return fedssl.Experiment.from_dict(
        {
            "rounds": rounds,
            "clients": 2,
            "data": {"name": "npz", "path": "tiny.npz"},
            "method": {"name": "simclr", "backbone": "cnn", "hidden": hidden, "dim": DIM},
            "train": {"batch": 8},
            "probe": {"every": 0, "linear": False},
        }
    )


def peaks(home: Path, found: dict[str, int]) -> None:
    """Return the peak memory in MiB of each kind of process of a federation so far."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"FLWR_HOME={home}".encode() not in (process / "environ").read_bytes():
                continue
            line = (process / "cmdline").read_text()
            kind = next((kind for word, kind in WORDS.items() if word in line), None)
            status = (process / "status").read_text()
            if kind and "VmHWM:" in status:
                found[kind] = max(found[kind], int(status.split("VmHWM:")[1].split()[0]) // 1024)


def measure(mb: float, rounds: int) -> dict[str, Any]:
    from fedssl.flower.local_federation import run_local_federation

    with tempfile.TemporaryDirectory() as name:
        root, found, done = Path(name).resolve(), defaultdict[str, int](int), threading.Event()
        pixels = np.random.default_rng(0).integers(0, 255, (48, 12, 12, 3)).astype(np.uint8)
        np.savez(root / "tiny.npz", x_train=pixels)

        def watch() -> None:
            while not done.wait(0.5):
                peaks(root / "run/flower/home", found)

        watcher = threading.Thread(target=watch)
        watcher.start()
        begun = time.monotonic()
        try:
            run_local_federation(
                experiment(mb, rounds),
                root / "run",
                root,
                title="benchmark",
                device="cpu",
                quiet=True,
            )
        finally:
            done.set()
            watcher.join()
        lines = list(read_rounds(root / "run/rounds.jsonl"))
        clients = [client for line in lines for client in line["clients"]]
        sound = [client for client in clients if not client["dropped"]]
        training = [client["images"] / client["images_per_s"] for client in sound]
        return {
            "upload_mb": sound[0]["bytes_up"] / 1e6 if sound else None,
            "dropped": [client["dropped"] for client in clients if client["dropped"]],
            "seconds_per_round": statistics.median(line["seconds"] for line in lines),
            "of_that_training": statistics.median(training) if training else None,
            "seconds_in_all": time.monotonic() - begun,
            "peak_mib": dict(found),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=float, nargs="+", default=[1, 250])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {
        "machine": machine(),
        "rounds": args.rounds,
        "runs": [measure(mb, args.rounds) for mb in args.mb],
    }
    print(text := json.dumps(found, indent=2))
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
