"""Measure `fedssl run demo` over seeds, compared with a random backbone and isolated clients.

    python -m benchmarks.demo [--seeds 3] [--out results/demo/seeds.json]

The output contains, for every probe, all figures, and the paired differences (same seed, same
labelled images) between the federated backbone and the random one, and between it and the mean of
the clients that trained alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import fedssl
from fedssl.core.provenance import environment

PROBES, OTHERS = ("knn", "linear"), ("random", "isolated")


def measure(seed: int, folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    run = fedssl.run(
        "demo", dir=folder / f"seed-{seed}", seed=seed, set={"probe.picture": False, **changes}
    )
    table = run.results["table"]
    figures = {
        row: {probe: round(table[row][probe]["mean"], 2) for probe in PROBES} for row in table
    }
    training = sum(line["seconds"] for line in run.rounds)
    return {
        "seed": seed,
        "accuracy": figures,
        "training_s": round(training, 1),
        "all_s": round(time.perf_counter() - started, 1),
    }


def differences(seeds: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return federated minus other, in points, for each seed."""
    found: dict[str, dict[str, Any]] = {}
    for other in OTHERS:
        for probe in PROBES:
            pairs = [s["accuracy"]["this run"][probe] - s["accuracy"][other][probe] for s in seeds]
            found[f"{probe} over {other}"] = {
                "each": [round(d, 2) for d in pairs],
                "mean": round(statistics.fmean(pairs), 2),
                "least": round(min(pairs), 2),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/demo/seeds.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seeds = [measure(seed, Path(folder), {}) for seed in range(args.seeds)]
        device = fedssl.Run(Path(folder) / "seed-0").device
    report = {"environment": environment(device), "seeds": seeds, "differences": differences(seeds)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report["differences"], indent=2))


if __name__ == "__main__":
    main()
