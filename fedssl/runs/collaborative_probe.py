"""Collaborative fine-tuning: supervised FedAvg from the trained backbone, with a few labels each.

As Wu et al., "Decentralized unsupervised learning of visual representations" (CCL), IJCAI 2022, and
as FedCA's semi-supervised figures suggest. Departures: CCL's settings are in an appendix that is
not available, and those of its `semi` (20 epochs, the classifier at another rate) would be 20 steps
here; so optimizer, rate, batch and length are those with which FedU and FedCA fine-tune, one local
epoch a round. The classifier is linear, where FedCA's has a hidden layer; images are cropped and
flipped as in the method `supervised`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedssl import nets
from fedssl.core.console import ignore_message
from fedssl.core.errors import ConfigError
from fedssl.core.seeds import generator
from fedssl.core.state.state import State
from fedssl.data import Dataset
from fedssl.evaluation.evaluate import Evaluation, predict_labels
from fedssl.evaluation.labelled_images import FEW_LABELS
from fedssl.evaluation.missing_labels import NEEDS_CLIENT_LABELS
from fedssl.evaluation.models import Models, backbone_tensors, saved_models
from fedssl.evaluation.score import Score
from fedssl.experiment.experiment import Experiment
from fedssl.probes import balanced, fine_tuning, label_count
from fedssl.runs.local import Interrupted, LocalRun, train_locally

PROBE = "collaborative"


def collaborative(
    evaluation: Evaluation, models: Models, seen: Dataset, owners: Mapping[str, Tensor]
) -> Score:
    """Return the accuracy of the classifier that clients train together; keep nothing of it.

    `seen` are the images as clients see them, `owners` the indices of each client's images.
    """
    if len(models) > 1:
        raise ConfigError(
            f'probe "{PROBE}" fine-tunes one model that all clients share, but this run has '
            f"several ({', '.join(models)}): choose another probe, such as linear"
        )
    if not evaluation.data.train.labelled:
        raise ConfigError(NEEDS_CLIENT_LABELS[PROBE])
    name, state = next(iter(models.items()))
    test = evaluation.images.test
    data = labelled_part(evaluation.experiment, seen, owners)
    assert data.owners is not None
    score = Score()
    score.labelled = sum(map(len, data.owners.values()))
    score.note = _check_labels(data.owners)
    predictions = _fine_tuned_predictions(evaluation, state, data)
    labels = test.labels.to(predictions.device)
    score.add(name, labels, predictions, evaluation.images.classes)
    return score


def _check_labels(owners: Mapping[str, Tensor]) -> str | None:
    """Return a note on clients that have too few labels to train; raise ConfigError if all have."""
    single = sum(1 for index in owners.values() if len(index) == 1)
    if not single:
        return None
    if not any(len(index) > 1 for index in owners.values()):
        raise ConfigError(
            "every client has a single labelled image, but training needs at least two: raise the "
            "share labels"
        )
    return f"{single} of {len(owners)} clients have a single labelled image and do not train"


def _fine_tuned_predictions(evaluation: Evaluation, state: State, data: Dataset) -> Tensor:
    """Fine-tune a model in a temporary run; return the predicted classes (n,) of test images."""
    images = evaluation.images
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "backbone.safetensors"
        nets.save_backbone(backbone_tensors(state), weights, {})
        experiment = supervised(evaluation.experiment, weights, images.classes)
        run = Path(folder) / "run"
        try:
            train_locally(
                LocalRun(experiment, run, data, None, evaluation.device, title=PROBE, quiet=True)
            )
        except Interrupted:
            raise Interrupted("stopped; this fine-tuning was discarded") from None
        tuned = saved_models(experiment, run, ignore_message)["global"]
        return predict_labels(experiment, tuned, images.test.pixel_rows, evaluation.device)


def labelled_part(experiment: Experiment, seen: Dataset, owners: Mapping[str, Tensor]) -> Dataset:
    """Return the images with a labelled share of those of each client, drawn by the seed.

    The share has as many images of each class as possible.
    """
    share = experiment.probe.labels or FEW_LABELS
    if share > 1:
        raise ConfigError(
            f'probe "{PROBE}" takes labels as a share of each client\'s images, at most 1 '
            f"(got {share:g})"
        )
    labels = seen.train.labels
    labelled = {}
    for client, index in owners.items():
        if len(index):
            stream = generator(experiment.seed, client, "labelled")
            index = index[balanced(labels[index], label_count(share, len(index)), stream)]
        labelled[client] = index
    return seen._replace(owners=labelled)


def supervised(experiment: Experiment, weights: Path, classes: int) -> Experiment:
    """Return the experiment that fine-tunes the backbone in a file, like the run's otherwise."""
    probe = experiment.probe
    plain = experiment.to_dict()
    protocol = fine_tuning("fedu", probe.labels or FEW_LABELS)
    protocol = protocol.changed(probe.epochs, probe.lr, probe.batch)
    train = plain["train"] | {
        "optimizer": protocol.optimizer,
        "lr": protocol.lr,
        "batch": protocol.batch,
        "weight_decay": 0.0,
        "schedule": "constant",
        "epochs": 1,
    }
    method = {"name": "supervised", "classes": classes, "init": str(weights)}
    for key in ("backbone", "stem", "view_size"):
        if key in plain["method"]:
            method[key] = plain["method"][key]
    return Experiment.from_dict(
        {
            "seed": experiment.seed,
            "rounds": protocol.epochs,
            "data": plain["data"] | {"leave_out": 0.0},
            "partition": {"name": "natural"},
            "method": method,
            "train": train,
            "guard": {"min_uploads": 1},  # clients with a single labelled image do not train
            "probe": {"every": 0},
        }
    )
