"""Train the golden cases and print the SHA-256 of each exported backbone as JSON.

python tests/golden/record.py [CASE …]

Uses nothing of the package but `fedssl.run`, so that the same file also runs with the code of an
earlier commit.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import fedssl

# Dec-SSL's recipes as they were when bits were recorded. Since then they have settings that the
# code at the starting commit does not have.
DEC_SSL = "fedsimclr-cifar10-noniid-mini"
STEPS = {"train.schedule": "step", "method.temperature": 0.5, "algorithm.weights": "uniform"}
DIRICHLET = {"partition": {"name": "dirichlet", "alpha": 5, "balanced": True}}

# Recipe and changed settings. There is a case for every algorithm, every method, every topology and
# each family of backbones.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    # algorithms
    "fedavg": ("fedbyol-cifar10-noniid-mini", {}),
    "fedavgm": ("demo", {"algorithm.name": "fedavgm"}),
    "fedadam": ("demo", {"algorithm.name": "fedadam"}),
    "fedprox": (DEC_SSL, {**STEPS, **DIRICHLET, "algorithm.name": "fedprox"}),
    "fedbn": (DEC_SSL, {**STEPS, **DIRICHLET, "algorithm.name": "fedbn"}),
    "fedu": ("fedu-cifar10-noniid-mini", {}),
    "fedema": ("fedema-cifar10-noniid-mini", {"rounds": 3}),
    "fedema-global": (
        "fedema-cifar10-noniid-mini",
        {"rounds": 3, "algorithm.divergence": "global"},
    ),
    "fedema-sampled": ("fedema-cifar10-noniid-mini", {"rounds": 4, "topology.participation": 0.6}),
    "fedca": ("fedca-cnn5-cifar10-noniid-mini", {}),
    "ccl": ("ccl-cifar10-noniid1-mini", {}),
    "featarc": (DEC_SSL, {**STEPS, "algorithm.name": "featarc"}),
    "perssfl": (DEC_SSL, {**STEPS, "algorithm.name": "perssfl"}),
    # methods
    "autoencoder": ("fedca-fedae-cnn5-cifar10-noniid-mini", {}),
    "barlow": ("demo", {"method.name": "barlow"}),
    "byol": ("demo", {"method.name": "byol"}),
    "deepcluster": ("ccl-feddc-cifar10-noniid1-mini", {}),
    "dino": ("demo", {"method.name": "dino"}),
    "mae": (
        DEC_SSL,
        {
            "train.schedule": "step",
            "algorithm.weights": "uniform",
            **DIRICHLET,
            "method": {"name": "mae", "backbone": "vit_mini"},
        },
    ),
    "mocov1": ("fedmocov1-cifar10-noniid-mini", {}),
    "mocov2": ("fedmocov2-cifar10-noniid-mini", {}),
    "rotation": ("fedca-fedpr-cnn5-cifar10-noniid-mini", {}),
    "simclr": ("demo", {}),
    "simsiam": ("fedsimsiam-cifar10-noniid-mini", {}),
    "supervised": ("supervised-resnet50-cifar10-noniid-mini", {}),
    "swav": ("ccl-fedswav-cifar10-noniid1-mini", {}),
    "vicreg": ("demo", {"method.name": "vicreg"}),
    # topologies
    "centralized": ("demo", {"topology.name": "centralized"}),
    "complete": ("demo", {"topology.name": "complete"}),
    "cycle": ("demo", {"topology.name": "cycle"}),
    "edges": (
        "demo",
        {"topology": {"name": "edges", "edges": [["0", "1"], ["1", "2"], ["2", "3"], ["3", "4"]]}},
    ),
    "isolated": ("demo", {"topology.name": "isolated"}),
    "random-graph": ("demo", {"topology.name": "random"}),
    "tree": ("demo", {"topology.name": "tree"}),
    # backbones and the guard
    "resnet18": (
        "demo",
        {"rounds": 1, "method.backbone": "resnet18", "train.epochs": 1, "partition.share": 0.03},
    ),
    "clipped": ("demo", {"guard.norm_bound": 1.01, "guard.clip": True}),
}
ROUNDS = 2
# Probes do not decide a backbone's bits. A checkpoint in every round is part of what is tested.
COMMON = {
    "train.checkpoint_every": 0,
    "probe.every": 0,
    "probe.beside": [],
    "probe.picture": False,
    "probe.epochs": 1,
}


def platform() -> str:
    """Return the key under which bits are recorded: torch's version and the kind of CPU.

    CPUs with the same instructions but of other models give other bits: libraries choose their
    kernels by the model too.
    """
    version = torch.__version__.split("+")[0]
    return f"torch {version}, {torch.backends.cpu.get_cpu_capability()}, {_cpu_model()}"


def _cpu_model() -> str:
    """Return the model of the CPU, as Linux names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return "unknown CPU"


def settings(case: str) -> tuple[str, dict[str, Any]]:
    recipe, changes = CASES[case]
    return recipe, {**COMMON, "rounds": ROUNDS, "seed": 11, **changes}


def backbone_hash(folder: Path) -> str:
    """Return one hash for all backbones of a run, in the order of their names, without metadata."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("backbone*.safetensors")):
        content = file.read_bytes()
        header = 8 + int.from_bytes(content[:8], "little")
        digest.update(content[header:])
    return digest.hexdigest()


def train(case: str, folder: Path) -> str:
    """Train a case in a folder and return the hash of what it exports."""
    recipe, changes = settings(case)
    fedssl.run(recipe, folder, device="cpu", quiet=True, set=changes)
    return backbone_hash(folder)


def resume(folder: Path) -> fedssl.Run:
    """Resume a run directory."""
    return fedssl.run(folder / "experiment.toml", folder, device="cpu", quiet=True)


def main(cases: list[str]) -> None:
    hashes = {}
    for case in cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            hashes[case] = train(case, Path(folder) / "run")
        print(case, hashes[case][:16], file=sys.stderr, flush=True)
    print(json.dumps({platform(): hashes}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
