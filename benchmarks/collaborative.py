"""Explain the accuracy of the probe `collaborative` on the demo: change one thing at a time.

    python -m benchmarks.collaborative [--seeds 3] [--only NAME …] [--runs DIR]
                                       [--out results/demo/collaborative.json]

The demo is pre-trained with 1,000 of its training images held out. Clients then fine-tune together
with the labels of a tenth of their images, 400 in all. Accuracies are measured on the held-out
images; no test image is used. benchmarks/collaborative_variants.py has the variants. References
that learn from the same 400 images: a linear classifier on fixed features, and fine-tuning in one
place (the function of the probe `semi`, with the head of `collaborative`).

A variant that is in the output already is not measured again. `--runs` keeps the pre-trained runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fedssl
from benchmarks.collaborative_variants import STUDY, VARIANTS, Variant, register_study
from fedssl import nets
from fedssl.core.console import ignore_message
from fedssl.core.provenance import environment
from fedssl.core.seeds import generator
from fedssl.core.state.state import State
from fedssl.data import Dataset
from fedssl.evaluation.evaluate import Evaluation, predict_labels
from fedssl.evaluation.models import saved_models
from fedssl.evaluation.probe_settings import with_probe_settings
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.federation_setup import build_method
from fedssl.experiment.trained_backbone import TrainedBackbones
from fedssl.probes import Labelled, embed, fine_tune, fine_tuning, linear_predict
from fedssl.probes.protocol import LINEAR
from fedssl.runs.collaborative_probe import PROBE, labelled_part, supervised
from fedssl.runs.local import LocalJob, train_locally
from fedssl.runs.rounds_log import read_rounds

HELD_OUT = {
    "data.holdout": 1000,
    "probe.every": 0,
    "probe.picture": False,
    "probe.baselines": [],
}
SHARE = 0.1


class Bench:
    """A pre-trained run, its labelled images and its held-out images."""

    def __init__(self, run: fedssl.Run, share: float = SHARE) -> None:
        self.experiment = with_probe_settings(run.experiment, PROBE, {"labels": share})
        data = run.data(ignore_message)
        self.device = run.device
        self.evaluation = Evaluation(self.experiment, data, run.device)
        self.state = run.models()["global"]
        self.labelled = labelled_part(self.experiment, *run.partition_data(data))
        self.test = self.evaluation.images.test
        self.dropped = 0  # uploads that the guard has dropped since this was last set to 0

    @property
    def index(self) -> Tensor:
        """Rows of all labelled images."""
        assert self.labelled.owners is not None
        return torch.cat(list(self.labelled.owners.values()))

    def owned(self, how: str) -> Dataset:
        """Return the labelled images at their owners, dealt at random, or at one client."""
        owners = self.labelled.owners
        assert owners is not None
        if how == "pooled":
            return self.labelled._replace(owners={"all": self.index})
        if how == "dealt":
            order = torch.randperm(len(self.index), generator=generator(self.experiment.seed))
            parts = self.index[order].split([len(rows) for rows in owners.values()])
            return self.labelled._replace(owners=dict(zip(owners, parts, strict=True)))
        return self.labelled

    def accuracy(self, predictions: Tensor) -> float:
        """Return the accuracy in percent on the held-out images."""
        return 100 * float((predictions.cpu() == self.test.labels).float().mean())

    def measure(self, variant: Variant) -> float:
        """Return the accuracy of one variant of the probe."""
        with tempfile.TemporaryDirectory() as folder:
            experiment, tuned = self.tune(variant, Path(folder))
            if variant.pooled_statistics:
                tuned = self._with_pooled_statistics(experiment, tuned)
            predictions = predict_labels(experiment, tuned, self.test.pixel_rows, self.device)
        return self.accuracy(predictions)

    def tune(self, variant: Variant, folder: Path) -> tuple[Experiment, State]:
        """Fine-tune in a folder; return the experiment, which needs the folder, and the model."""
        weights = folder / "backbone.safetensors"
        backbones = TrainedBackbones(self.experiment, self.test.image_shape[0])
        nets.save_backbone(backbones.tensors(self.state), weights, {})
        plain = supervised(self.experiment, weights, self.evaluation.images.classes)
        changed = {"method.name": STUDY, **variant.changes}
        experiment = plain.with_changes(changed)
        data = self.owned(variant.owners)
        run = folder / "run"
        train_locally(LocalJob(experiment, run, data, None, self.device, title=PROBE, quiet=True))
        self.dropped += count_dropped(run)
        return experiment, saved_models(experiment, run, ignore_message)["global"]

    @torch.no_grad()
    def _with_pooled_statistics(self, experiment: Experiment, state: State) -> State:
        """Return a model with the BatchNorm statistics of all labelled images, as one batch."""
        images = self.labelled.train.select(self.index).pixels.to(self.device)
        method = build_method(experiment, self.test.image_shape, self.device).train()
        method.state.load(state)
        for _ in range(100):  # running statistics move by a tenth of the difference
            method.encode(method.clean(images))
        return method.state.clone()

    # -- references --

    def linear(self) -> float:
        """Return the accuracy of a linear classifier on fixed features, by L-BFGS."""
        features = self.evaluation.features
        images = self.labelled.train.select(self.index)
        train = Labelled(features(self.state, images.pixel_rows), images.labels.to(self.device))
        test = features(self.state, self.test.pixel_rows)
        return self.accuracy(linear_predict(train, test, LINEAR["fedema"], seed=0, solver="lbfgs"))

    def fine_tuned(self) -> float:
        """Return the accuracy of the whole model, fine-tuned in one place."""
        images = self.labelled.train.select(self.index)
        tuned = fine_tune(
            self.evaluation.backbone(self.state),
            images.pixels.to(self.device),
            images.labels.to(self.device),
            self.evaluation.images.classes,
            normalisation=None,
            protocol=fine_tuning("fedu", SHARE)._replace(head="linear"),
            seed=self.experiment.seed,
        )
        return self.accuracy(embed(tuned, self.test.pixel_rows, None, self.device).argmax(1))


def cases() -> dict[str, Callable[[Bench], float]]:
    """Return the references and variants by name: functions that measure an accuracy."""
    found: dict[str, Callable[[Bench], float]] = {
        "reference: linear, fixed features": Bench.linear,
        "reference: fine-tuned in one place": Bench.fine_tuned,
    }
    for name, variant in VARIANTS.items():
        found[name] = partial(Bench.measure, variant=variant)
    return found


def count_dropped(folder: Path) -> int:
    """Return the number of uploads that were dropped in a run."""
    rounds = read_rounds(folder / "rounds.jsonl")
    return sum(client["dropped"] is not None for line in rounds for client in line["clients"])


def pretrained(seed: int, folder: Path) -> fedssl.Run:
    """Return the demo without the held-out images, trained to its end."""
    return fedssl.run("demo", folder / f"seed-{seed}", quiet=True, seed=seed, set=HELD_OUT)


def study(seeds: int, only: list[str], runs: Path, out: Path) -> dict[str, Any]:
    """Measure what is not in the output yet; write it after each accuracy."""
    report: dict[str, Any] = {}
    if out.is_file():
        report = json.loads(out.read_text())
    accuracies = report.setdefault("accuracy", {})
    benches = [Bench(pretrained(seed, runs)) for seed in range(seeds)]
    report["environment"] = environment(benches[0].device)
    report["labelled"] = [len(bench.index) for bench in benches]
    dropped = report.setdefault("dropped_uploads", {})
    for name, measure in cases().items():
        figures = accuracies.setdefault(name, [])
        if only and name not in only:
            continue
        for bench in benches[len(figures) :]:
            figures.append(round(measure(bench), 2))
            if bench.dropped:
                dropped[name] = dropped.get(name, 0) + bench.dropped
            bench.dropped = 0
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(report, indent=2) + "\n")
        if figures:
            print(f"{name:44} {statistics.fmean(figures):6.2f}  {figures}", flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], choices=list(cases()), metavar="NAME")
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/demo/collaborative.json"))
    args = parser.parse_args()
    register_study()
    with tempfile.TemporaryDirectory() as folder:
        study(args.seeds, args.only, args.runs or Path(folder), args.out)


if __name__ == "__main__":
    main()
