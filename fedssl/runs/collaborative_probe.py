"""Collaborative fine-tuning: supervised FedAvg from the trained backbone, with a few labels each.

As in Table 3 of Wu et al., "Decentralized unsupervised learning of visual representations" (CCL),
IJCAI 2022, and as Table 2 of Zhang et al., "Federated unsupervised representation learning"
(FedCA), 2020, suggests. probes/protocol.py has the settings of both, and what is ours in them.
Departures: a client resets its optimizer in each round, as in all training here; the papers do not
state whether it does. BatchNorm is in training mode, and its statistics are averaged.
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
from fedssl.evaluation.models import Models, saved_models
from fedssl.evaluation.score import Score
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.trained_backbone import TrainedBackbones
from fedssl.probes import TOGETHER, Protocol, balanced, label_count
from fedssl.runs.local import Interrupted, LocalJob, train_locally
from fedssl.views import Augment

PROBE = "collaborative"
# Views that are the images themselves.
CLEAN = Augment(crop=(1, 1), ratio=(1, 1), flip=0, jitter=(0, 0, 0, 0), gray=0)


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
            "every client has a single labelled image, but training needs at least two: set a "
            "larger share in probe.labels"
        )
    return f"{single} of {len(owners)} clients have a single labelled image and do not train"


def _fine_tuned_predictions(evaluation: Evaluation, state: State, data: Dataset) -> Tensor:
    """Fine-tune a model in a temporary run; return the predicted classes (n,) of test images."""
    images = evaluation.images
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "backbone.safetensors"
        backbones = TrainedBackbones(evaluation.experiment, data.train.image_shape[0])
        nets.save_backbone(backbones.tensors(state), weights, {})
        experiment = supervised(evaluation.experiment, weights, images.classes)
        run = Path(folder) / "run"
        try:
            train_locally(
                LocalJob(experiment, run, data, None, evaluation.device, title=PROBE, quiet=True)
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
    protocol = TOGETHER[probe.protocol].changed(probe.epochs, probe.lr, probe.batch)
    train = plain["train"] | {
        "optimizer": protocol.optimizer,
        "lr": protocol.lr,
        "batch": protocol.batch,
        "weight_decay": 0.0,
        "schedule": "constant",
        "epochs": protocol.local_epochs,
    }
    method = {
        "name": "supervised",
        "classes": classes,
        "init": str(weights),
        "head": probe.head or protocol.head,
    }
    if not protocol.random_crops:
        method["augment"] = CLEAN.model_dump()
    for key in ("backbone", "stem", "view_size"):
        if key in plain["method"]:
            method[key] = plain["method"][key]
    return Experiment.from_dict(
        {
            "seed": experiment.seed,
            "rounds": _rounds(protocol),
            "data": plain["data"] | {"leave_out": 0.0},
            "partition": {"name": "natural"},
            "method": method,
            "train": train,
            "guard": {"min_uploads": 1},  # clients with a single labelled image do not train
            "probe": {"every": 0},
        }
    )


def _rounds(protocol: Protocol) -> int:
    """Return the number of rounds; raise ConfigError if the epochs are no whole number of them."""
    rounds, rest = divmod(protocol.epochs, protocol.local_epochs)
    if rest:
        raise ConfigError(
            f'probe "{PROBE}": epochs = {protocol.epochs}, but a round of this protocol has '
            f"{protocol.local_epochs} local epochs: set epochs to a multiple of "
            f"{protocol.local_epochs}"
        )
    return rounds
