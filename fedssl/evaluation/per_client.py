"""Each client's model on all test images, and on test images in the client's own mix of classes.

As Wang et al., "Does Learning from Decentralized Non-IID Unlabeled Data Benefit from Self
Supervision?", ICLR 2023, measure models of several clients or clusters; they do not state which
test images their Table 2 uses, hence both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedssl.core.errors import ConfigError
from fedssl.core.state.state import State
from fedssl.data import Dataset, histogram
from fedssl.evaluation.evaluate import Evaluation
from fedssl.evaluation.missing_labels import NEEDS_CLIENT_LABELS
from fedssl.evaluation.models import Models, PersonalModels
from fedssl.evaluation.score import Score, rounded

PROBE = "per-client"


def per_client(
    evaluation: Evaluation, models: Models, seen: Dataset, owners: Mapping[str, Tensor]
) -> Score:
    """Return the linear probe's accuracy on all test images for each client's model.

    `own_mix` of the score has the accuracy weighted to the client's mix of classes. The probe
    learns from all labelled training images. `owners` maps clients to the indices of their images.
    `seen`, the images as clients see them, is not used here.
    """
    train = evaluation.data.train
    if not train.labelled:
        raise ConfigError(NEEDS_CLIENT_LABELS[PROBE])
    nonempty = {client: index for client, index in owners.items() if len(index)}
    score = evaluation.measure(client_models(models, list(nonempty)), (PROBE,))[PROBE]
    if len(score) < len(nonempty):
        missing = len(nonempty) - len(score)
        score.add_note(f"{missing} of {len(nonempty)} clients do not have their own model yet")
    counts = histogram(nonempty, train.labels, evaluation.images.classes)
    for client, class_counts in zip(nonempty, counts, strict=True):
        if client in score:
            matrix = torch.tensor(score.confusion[client])
            score.own_mix[client] = weighted(matrix, class_counts)
    return score


def client_models(models: Models, clients: Sequence[str]) -> Mapping[str, State]:
    """Return the model of each client: its own, or the only one there is, which all clients share.

    If some clients have their own model, the clients without one are left out.
    """
    if len(models) == 1:
        shared = next(iter(models))
        return PersonalModels(clients, lambda client: models[shared])
    owners = []
    for client in clients:
        # A client may have the name of a shared model, such as "global": that is not its own.
        if client in models and client not in models.excluded:
            owners.append(client)
    if not owners:
        raise ConfigError(
            f'probe "{PROBE}" measures the model of each client, but no client has its own '
            f"model in this run ({', '.join(models)}): choose another probe, such as linear"
        )
    return PersonalModels(owners, models.__getitem__)


def weighted(confusion: Tensor, counts: Tensor) -> float | None:
    """Return the accuracy in percent on test images with the class proportions of `counts` (C,).

    `confusion` (C, C) counts test images by class (rows) and prediction (columns). Classes without
    test images do not count; None if there are no others.
    """
    tested = confusion.sum(1)
    mix = torch.where(tested > 0, counts, 0).double()
    if not mix.sum():
        return None
    accuracies = mix / mix.sum() * confusion.diagonal() / tested.clamp(min=1)
    return rounded(100 * float(accuracies.sum()))
