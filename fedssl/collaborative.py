"""Collaborative fine-tuning: supervised FedAvg from the learned backbone, each client with a few labels of its own.

As Wu et al., "Decentralized unsupervised learning of visual representations" (CCL), IJCAI 2022, and as FedCA's
semi-supervised figures suggest. Departures: CCL's settings are in an appendix that is not to be had, and those of its
`semi` (20 epochs, the classifier at a rate of its own) would be 20 steps here; so optimizer, rate, batch and length are
those with which FedU and FedCA fine-tune, one local epoch a round. The classifier is linear, where FedCA's has a hidden
layer; images are cropped and flipped as the method `supervised` has it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedssl import nets
from fedssl.data import Dataset
from fedssl.data.progress import say_nothing
from fedssl.drive import Interrupted, drive
from fedssl.errors import ConfigError
from fedssl.evaluate import Evaluation, classified
from fedssl.experiment import Experiment
from fedssl.labelled import FEW_LABELS
from fedssl.lacking import OF_CLIENTS
from fedssl.models import Models, saved_models
from fedssl.probes import balanced, fine_tuning, how_many
from fedssl.score import Score, confusion
from fedssl.seeds import generator

PROBE = "collaborative"


def collaborative(evaluation: Evaluation, models: Models, seen: Dataset, owners: Mapping[str, Tensor]) -> Score:
    """The accuracy of the classifier that the clients train together; nothing is kept of that training. `seen` are the
    images as clients see them, and `owners` says which are whose."""
    if len(models) > 1:
        raise ConfigError(f"clients fine-tune one model together, and this run has several: {', '.join(models)}")
    if not evaluation.data.train.labelled:
        raise ConfigError(OF_CLIENTS[PROBE])
    (name, state), score = next(iter(models.items())), Score()
    tested, classes = evaluation.images.tested, evaluation.images.classes
    data = labelled_part(evaluation.experiment, seen, owners)
    assert data.owners is not None
    score.labelled = sum(map(len, data.owners.values()))
    alone = [client for client, index in data.owners.items() if len(index) == 1]
    if alone and not any(len(index) > 1 for index in data.owners.values()):
        raise ConfigError(
            "every client has a single labelled image, and training takes two: set a larger share of labels"
        )
    if alone:
        score.note = f"{len(alone)} of {len(data.owners)} clients have a single labelled image, and do not train"
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "backbone.safetensors"
        nets.save_backbone(state.pick(("backbone",)).without_prefix("backbone").tensors(), weights, {})
        experiment = supervised(evaluation.experiment, weights, classes)
        try:
            drive(experiment, Path(folder) / "run", data, None, evaluation.device, PROBE, quiet=True)
        except Interrupted:
            raise Interrupted("stopped; nothing is kept of this fine-tuning") from None
        tuned = saved_models(experiment, Path(folder) / "run", say_nothing)["global"]
        guessed = classified(experiment, tuned, tested.held, evaluation.device)
    score.add(name, confusion(tested.labels.to(guessed.device), guessed, classes))
    return score


def labelled_part(experiment: Experiment, seen: Dataset, owners: Mapping[str, Tensor]) -> Dataset:
    """Each client with a share of its own training images, as many of each class as it goes, drawn by the seed."""
    share, labels = experiment.probe.labels or FEW_LABELS, seen.train.labels
    if share > 1:
        raise ConfigError("labels of each client's own are a share of its images, up to 1")
    some = {client: _some(client, index, labels, share, experiment.seed) for client, index in owners.items()}
    return seen._replace(owners=some)


def _some(client: str, index: Tensor, labels: Tensor, share: float, seed: int) -> Tensor:
    if not len(index):
        return index
    return index[balanced(labels[index], how_many(share, len(index)), generator(seed, client, "labelled"))]


def supervised(experiment: Experiment, weights: Path, classes: int) -> Experiment:
    """The run's experiment as one that fine-tunes its backbone, which lies in a file."""
    probe, plain = experiment.probe, experiment.to_dict()
    how = fine_tuning("fedu", probe.labels or FEW_LABELS).changed(probe.epochs, probe.lr, probe.batch)
    train: Mapping[str, object] = {
        "optimizer": how.optimizer,
        "lr": how.lr,
        "batch": how.batch,
        "weight_decay": 0.0,
        "schedule": "constant",
        "epochs": 1,
    }
    kept = {key: plain["method"][key] for key in ("backbone", "stem", "view_size") if key in plain["method"]}
    return Experiment.from_dict(
        {
            "seed": experiment.seed,
            "rounds": how.epochs,
            "data": plain["data"] | {"leave_out": 0.0},
            "partition": {"name": "natural"},
            "method": kept | {"name": "supervised", "classes": classes, "init": str(weights)},
            "train": plain["train"] | train,
            "guard": {"min_uploads": 1},  # clients with a single labelled image do not train
            "probe": {"every": 0},
        }
    )
