"""Attack the demo, its clipped and noised updates, those of a small ViT, and a run of FedCA.

    python -m benchmarks.audit [--runs DIR] [--only NAME …] [--out results/demo/audit.json]
                               [--picture docs/how-to/audit.png]

Finished runs in DIR are not trained again; rows that are not chosen are kept. The images are those
of Fashion-MNIST, which are public, so their reconstructions may be shown. About 12 CPU minutes with
the training.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import fedssl
from fedssl.analysis.audit import audit
from fedssl.core.provenance import environment

DEMO: Mapping[str, Any] = {"probe.baselines": []}
VIT: Mapping[str, Any] = {**DEMO, "method.backbone": "vit_mini", "rounds": 1}
FEDCA: Mapping[str, Any] = {**DEMO, "algorithm.name": "fedca", "rounds": 6}
PAIRS = {"attacks": ["inversion"], "batches": [2], "whole_round": False}
# Of each row: the run, its changes to the demo, and the settings of the audit.
ROWS: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "demo": ("demo", DEMO, {}),
    "demo, clipped, no statistics": ("demo", DEMO, {**PAIRS, "clip": 1.0}),
    "demo, clipped, no statistics, noise 0.01": (
        "demo",
        DEMO,
        {**PAIRS, "clip": 1.0, "noise": 0.01},
    ),
    "vit, clipped, no statistics": ("vit", VIT, {**PAIRS, "clip": 1.0}),
    "vit, clipped, no statistics, noise 0.01": (
        "vit",
        VIT,
        {**PAIRS, "clip": 1.0, "noise": 0.01},
    ),
    "vit, clipped, no statistics, noise 0.1": ("vit", VIT, {**PAIRS, "clip": 1.0, "noise": 0.1}),
    "fedca": ("fedca", FEDCA, {"attacks": ["membership", "features"]}),
}
PICTURES = ("demo", "fedca")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/demo/audit.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/how-to/audit.png"))
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    options = parser.parse_args()
    rows = {}
    if options.out.is_file():
        rows = json.loads(options.out.read_text("utf-8"))["rows"]
    with tempfile.TemporaryDirectory() as temporary:
        root = options.runs or Path(temporary)
        for name in options.only:
            folder, changes, settings = ROWS[name]
            run = fedssl.run("demo", root / folder, "cpu", set=changes)
            output = audit(run, **settings)
            rows[name] = dict(output.results)
            print(name, json.dumps(rows[name]["attacks"], ensure_ascii=False), flush=True)
            if name in PICTURES:
                suffix = "" if name == "demo" else f"-{name}"
                picture = options.picture.with_stem(options.picture.stem + suffix)
                shutil.copyfile(output.png, picture)
            results = {"environment": environment(torch.device("cpu")), "rows": rows}
            text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
            options.out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
