"""Algorithms side by side on CIFAR-10, five clients of two classes each, at a fifth of the papers' budget.

    python -m benchmarks.cifar DATA.npz [--out results/cifar10-short] [--only NAME …] [--seed 0]

ResNet-18, 100 rounds of one local epoch, all else as FedEMA's recipes have it: each algorithm beside FedAvg with the
same method. kNN every five rounds, a linear probe at the end; divergence, and what else an algorithm notes, is in
rounds.jsonl. Keeps of each run its experiment.toml (where the images lay is left out), rounds.jsonl and results.json;
those finished are not run again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import fedssl

# The recipe, and what is changed in it.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedbyol": ("fedbyol-cifar10-noniid-short", {}),
    "fedema": ("fedema-cifar10-noniid-short", {}),
    "fedema-global": ("fedema-cifar10-noniid-short", {"algorithm.divergence": "global"}),
    "fedu": ("fedbyol-cifar10-noniid-short", {"algorithm.name": "fedu", "algorithm.mu": 0.2}),
    "fedsimclr": ("fedsimclr-cifar10-noniid-short", {}),
    "fedca": ("fedsimclr-cifar10-noniid-short", {"algorithm.name": "fedca"}),
    "featarc": ("fedsimclr-cifar10-noniid-short", {"algorithm.name": "featarc"}),
    "fedmocov2": ("fedmocov2-cifar10-noniid-short", {}),
    "ccl": ("fedmocov2-cifar10-noniid-short", {"algorithm.name": "ccl"}),
}
KEPT = ("experiment.toml", "rounds.jsonl", "results.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="x_train, y_train, x_test and y_test in an npz archive")
    parser.add_argument("--out", type=Path, default=Path("results/cifar10-short"))
    parser.add_argument("--only", nargs="*", choices=list(RUNS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, help="to try it out")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    for name in args.only or RUNS:
        folder = args.out / f"{name}-seed{args.seed}"
        if (folder / "results.json").is_file():
            continue
        begun = time.perf_counter()
        results = run(name, folder, args)
        measured = {probe: score["mean"] for probe, score in results["table"]["this run"].items()}
        print(f"{name}: {measured}, {time.perf_counter() - begun:.0f} s in all", flush=True)


def run(name: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    recipe, changes = RUNS[name]
    fixed = {
        "data.name": "npz",
        "data.path": str(args.data.resolve()),
        "probe.every": 5,
        "probe.beside": [],
        "train.checkpoint_every": 10**6,
        "seed": args.seed,
        **({"rounds": args.rounds} if args.rounds else {}),
    }
    with tempfile.TemporaryDirectory() as scratch:
        finished = fedssl.run(recipe, Path(scratch) / "run", device=args.device, quiet=True, set=fixed | changes)
        folder.mkdir(parents=True, exist_ok=True)
        for file in KEPT:
            text = (finished.dir / file).read_text("utf-8")
            (folder / file).write_text(text.replace(f"{args.data.resolve().parent}/", ""), "utf-8")
        return finished.results


if __name__ == "__main__":
    main()
