"""Measure the quality of the features that CCL's clients share: mixed or not, flipped or not.

    python -m benchmarks.ccl_features [--seeds 3] [--out results/ccl/features.json]

Measured on a CPU, means of three seeds: features of mixtures predict the class of clean images as
well as those of clean images do (65.5 and 63.0% kNN). With flipped signs, they do not (5.1%; chance
is 10%), are close together (spread 0.28 instead of 0.78) and have an effective rank of 33 instead
of 51. After ten rounds of training on so few images, CCL's variants cannot be distinguished from
plain averaging (78.6 to 78.9%).

The experiment uses the demo's images and clients with MoCo v2 instead of SimCLR. `features`: after
ten rounds of averaging both models, without sharing features, every client trains once more and
computes features of its images in each way. Measures over all clients' features:
    knn             accuracy in percent of the 20 nearest features for clean test images, under the
                    averaged momentum model; a mixture has the class of its heaviest image. Labels
                    are used only for this
    effective_rank  exp of the entropy of the singular values, of 128
    spread          √128 · mean standard deviation of unit features: near 1 if spread out, 0 if
                    collapsed
`training`: kNN accuracy of the backbone after ten rounds with CCL, as measured in the demo.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fedssl
from benchmarks.machine import machine
from fedssl.algorithms import CCL
from fedssl.algorithms._averaging import load_model
from fedssl.algorithms._instahide import coefficients, mixtures, partners
from fedssl.algorithms._shared_rows import projected
from fedssl.core.state.tree import model
from fedssl.engine.checkpoints.store import Store
from fedssl.experiment import federation_setup
from fedssl.experiment.client_data import partition_data
from fedssl.probes import knn_predict
from fedssl.probes.features import Labelled
from fedssl.topologies.topology import SERVER
from fedssl.training.client import Client
from fedssl.training.representation_metrics import effective_rank, spread
from fedssl.training.trainer import Trainer

WAYS = {
    "clean": (1, False),
    "flipped": (1, True),
    "mixed": (4, False),
    "mixed and flipped": (4, True),
}
ALONE: dict[str, Any] = {"algorithm.fusion": False, "algorithm.lam": 0.0}  # the paper's CL
TRAINED: dict[str, dict[str, Any]] = {
    "CL": ALONE,
    "CL + FF": {"algorithm.lam": 0.0},
    "CL + FF + NM": {},
    "CL + FF + NM, flipped": {"algorithm.flips": True},
}
MINI: dict[str, Any] = {
    "rounds": 10,
    "method.name": "mocov2",
    "method.backbone": "cnn",
    "method.hidden": 256,
    "method.queue": 1024,
    "method.temperature": 0.1,  # as CCL's
    "algorithm.name": "ccl",
    "probe.every": 0,
    "probe.linear": False,
    "probe.picture": False,
    "probe.baselines": [],
}


def trained(seed: int, changes: dict[str, Any], folder: Path) -> fedssl.Run:
    return fedssl.run(
        "demo", dir=folder, device="cpu", quiet=True, set={**MINI, **changes, "seed": seed}
    )


def features(run: fedssl.Run) -> dict[str, dict[str, float]]:
    """Return the measurements of each way to compute features."""
    experiment, data = run.experiment, run.data()
    snapshot = Store(run.dir).load(print)
    assert snapshot is not None
    assert data.test is not None
    site, seed, cpu = snapshot.sites[SERVER], experiment.seed, torch.device("cpu")
    trainer = Trainer(
        federation_setup.build_method(experiment, data.train.image_shape, cpu), experiment.train
    )
    algorithm, labels = CCL(fusion=False, lam=0.0), data.train.labels

    def clients() -> Iterator[tuple[Client, Tensor]]:
        """Yield each client after its training, with its labels."""
        for name, index in partition_data(experiment, data, print)[1].items():
            pixels = data.train.pixel_rows.select(index)
            lr = experiment.train.lr_at(snapshot.rounds - 1, experiment.rounds)
            client = Client(name, pixels, None, {}, trainer, seed, snapshot.rounds, lr, 1.0)
            algorithm.client_update(client, site)
            yield client, labels[index]

    made: dict[str, list[Labelled]] = {way: [] for way in WAYS}
    for client, own in clients():
        for way, (k, flips) in WAYS.items():
            rows = partners(client.count, k, client.count, client.generator("partners"))
            count, mixed = rows.shape
            heaviest = coefficients(count, mixed, client.generator("coefficients")).argmax(
                1, keepdim=True
            )
            found = projected(client.trainer, mixtures(client, k, client.count, flips))
            made[way].append(Labelled(found, own[rows.gather(1, heaviest).flatten()]))
    tester = Client("test", data.test.pixel_rows, None, {}, trainer, seed, 0)
    load_model(tester, model(site, "model"), model(site, "target"))
    clean = (trainer.method.clean(some) for some in data.test.pixel_rows.chunks(500))
    test = Labelled(projected(trainer, clean), data.test.labels)
    return {
        way: measured(Labelled(*map(torch.cat, zip(*found, strict=True))), test)
        for way, found in made.items()
    }


def measured(shared: Labelled, test: Labelled) -> dict[str, float]:
    rank, apart = effective_rank(shared.features), spread(shared.features)
    right = knn_predict(shared, test.features, k=20, temperature=0.1) == test.labels
    return {"knn": 100 * float(right.double().mean()), "effective_rank": rank, "spread": apart}


def summary(each: list[dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Return the values of all seeds and their mean."""
    columns = {key: [round(one[key], 3) for one in each] for key in each[0]}
    return {
        key: {"each": found, "mean": round(statistics.fmean(found), 3)}
        for key, found in columns.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/ccl/features.json"))
    args = parser.parse_args()
    made: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    learned: dict[str, list[dict[str, float]]] = {variant: [] for variant in TRAINED}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            for variant, changes in TRAINED.items():
                run = trained(seed, changes, Path(folder) / f"{variant} {seed}")
                learned[variant].append({"knn": run.results["table"]["this run"]["knn"]["mean"]})
                if changes is ALONE:
                    for way, found in features(run).items():
                        made[way].append(found)
                print(seed, variant, learned[variant][-1], flush=True)
    report = {
        "machine": machine(),
        "settings": MINI,
        "features": {way: summary(each) for way, each in made.items()},
        "training": {variant: summary(each) for variant, each in learned.items()},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({key: report[key] for key in ("features", "training")}, indent=2))


if __name__ == "__main__":
    main()
