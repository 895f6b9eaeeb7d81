"""Measure what client-level differential privacy costs on the demo, with 5 and with 100 clients.

    python -m benchmarks.privacy [--seeds 1] [--rounds 8] [--clients 5 100] [--only NAME …]
                                 [--out results/demo/privacy.json]

Every run has group normalisation and a learning rate of 0.001. "clipped" limits updates to the same
norm as the private runs but adds no noise (ε = ∞). In the runs with ε, the noise is computed from
ε, δ = 10⁻⁵ and the rounds. The demo has 5,000 images, so that each of 100 clients has 50.
`untrained` is the accuracy of the backbone before training: a private run that is no better has
learned nothing. The file is written after each run, and runs that it has already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import fedssl
from fedssl.core.provenance import environment

CLIP = 0.5
LR = 0.001  # the recipe's 0.004 is for BatchNorm; with groups it makes features worse
SETTINGS: dict[str, Mapping[str, Any]] = {
    "no privacy": {},
    "clipped": {"privacy": {"clip": CLIP, "noise": 0.0}},
    "epsilon 8": {"privacy": {"clip": CLIP, "epsilon": 8.0}},
    "epsilon 2": {"privacy": {"clip": CLIP, "epsilon": 2.0}},
}


def train(name: str, clients: int, seed: int, rounds: int) -> dict[str, Any]:
    """Return the accuracy of one run, and the privacy that it cost."""
    changes = {
        "seed": seed,
        "rounds": rounds,
        "clients": clients,
        "method.norm": "group",
        "train.lr": LR,
        "probe.baselines": ["random"],
        "probe.linear": False,
        "probe.picture": False,
        "probe.every": 0,
        **SETTINGS[name],
    }
    with tempfile.TemporaryDirectory() as folder:
        run = fedssl.run("demo", Path(folder) / "run", "cpu", quiet=True, set=changes)
        table = run.results["table"]
        measured = {
            "name": name,
            "clients": clients,
            "seed": seed,
            "rounds": len(run.rounds),
            "knn": table["this run"]["knn"]["mean"],
            "untrained": table["random"]["knn"]["mean"],
            "seconds": round(sum(line["seconds"] for line in run.rounds)),
        }
        return measured | {"privacy": run.results.get("privacy")}


def key_of(measured: Mapping[str, Any]) -> tuple[str, int, int]:
    """Return what identifies a run."""
    return measured["name"], measured["clients"], measured["seed"]


def main() -> None:
    """Train the runs that the output file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 100])
    parser.add_argument("--only", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--out", type=Path, default=Path("results/demo/privacy.json"))
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = []
    if arguments.out.is_file():
        runs = json.loads(arguments.out.read_text())["runs"]
    known = {key_of(measured) for measured in runs}
    for seed in range(arguments.seeds):
        for clients in arguments.clients:
            for name in arguments.only:
                if (name, clients, seed) in known:
                    continue
                measured = train(name, clients, seed, arguments.rounds)
                print(json.dumps(measured), flush=True)
                runs.append(measured)
                write(arguments.out, runs)


def write(path: Path, runs: list[dict[str, Any]]) -> None:
    """Write all runs so far."""
    values = {
        "command": "python -m benchmarks.privacy",
        "clip": CLIP,
        "lr": LR,
        "environment": environment(torch.device("cpu")),
        "runs": runs,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{json.dumps(values, indent=1)}\n")


if __name__ == "__main__":
    main()
