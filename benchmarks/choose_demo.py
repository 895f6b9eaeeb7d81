"""Compare the demo's settings with neighbouring ones on 1,000 held-out training images.

    python -m benchmarks.choose_demo [--seeds 1] [--out results/demo/choice.json]

No test image is used. Each line is the recipe with one change: kNN and linear accuracy (100 labels)
of the federated backbone, and its lead over a random backbone and over clients that train alone.
With one seed, differences of less than a point are noise.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.demo import differences, measure

HELD_OUT = {"data.holdout": 1000, "probe.every": 0}
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "temperature 0.2": {"method.temperature": 0.2},
    "learning rate 0.002": {"train.lr": 0.002},
    "learning rate 0.008": {"train.lr": 0.008},
    "20 rounds of 2 epochs": {"rounds": 20, "train.epochs": 2},
    "crops from 30%": {"method.augment.crop": [0.3, 1.0]},
    "crops from 70%": {"method.augment.crop": [0.7, 1.0]},
    "BYOL": {"method.name": "byol", "train.lr": 0.001},
    "MoCo v2": {"method.name": "mocov2", "method.queue": 1024, "train.lr": 0.002},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/demo/choice.json"))
    args = parser.parse_args()
    report: dict[str, dict[str, Any]] = {}
    for name, changes in VARIANTS.items():
        with tempfile.TemporaryDirectory() as folder:
            seeds = [
                measure(seed, Path(folder), {**HELD_OUT, **changes}) for seed in range(args.seeds)
            ]
        report[name] = {"changes": changes, "seeds": seeds, "differences": differences(seeds)}
        supports_ema = {key: found["mean"] for key, found in report[name]["differences"].items()}
        print(f"{name:24}", seeds[0]["accuracy"]["this run"], supports_ema, flush=True)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
