"""Each client's model by itself: on all test images, and on test images in the mix of classes that the client has.

As Wang et al., "Does Learning from Decentralized Non-IID Unlabeled Data Benefit from Self Supervision?", ICLR 2023,
measure models of several clients or clusters; which test images their Table 2 is of, they do not state, hence both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedssl.data import Dataset, histogram
from fedssl.errors import ConfigError
from fedssl.evaluate import Evaluation
from fedssl.lacking import OF_CLIENTS
from fedssl.models import Models
from fedssl.score import Score, rounded
from fedssl.tree import State

PROBE = "per-client"


class ByClient(Mapping[str, State]):
    """Each client's model: its own, made when it is asked for, or the only one there is, which all share. Where some
    have their own, those that have none yet are left out."""

    def __init__(self, models: Models, clients: Sequence[str]) -> None:
        self._models, self._one = models, next(iter(models)) if len(models) == 1 else None
        # A client may be called as what all share is, "global": that is nobody's own.
        named = [] if self._one else [client for client in clients if client in models and client not in models.apart]
        self._clients = named or list(clients)
        if not named and self._one is None:
            raise ConfigError(f"this run's models are not those of its clients: {', '.join(models)}")

    def __getitem__(self, client: str) -> State:
        return self._models[client if self._one is None else self._one]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def per_client(evaluation: Evaluation, models: Models, seen: Dataset, owners: Mapping[str, Tensor]) -> Score:
    """The linear probe on all labelled training images, for each client's model; `own_mix` has the second accuracy.
    `owners`: client → its images; `seen`, how clients see them, does not matter here."""
    train = evaluation.data.train
    if not train.labelled:
        raise ConfigError(OF_CLIENTS[PROBE])
    held = {client: index for client, index in owners.items() if len(index)}
    score = evaluation.measure(ByClient(models, list(held)), (PROBE,))[PROBE]
    if len(score) < len(held):
        score.add_note(f"{len(held) - len(score)} of {len(held)} clients have no model of their own yet")
    counts = dict(zip(held, histogram(held, train.labels, evaluation.images.classes), strict=True))
    score.own_mix = {client: weighted(torch.tensor(score.confusion[client]), counts[client]) for client in score}
    return score


def weighted(confusion: Tensor, counts: Tensor) -> float | None:
    """Accuracy in percent if the test images had classes in the proportions of `counts` (C,), given (C, C): images of
    each class by what they were taken for. Classes without test images do not count; None if there are no others."""
    tested = confusion.sum(1)
    mix = torch.where(tested > 0, counts, 0).double()
    if not mix.sum():
        return None
    return rounded(100 * float((mix / mix.sum() * confusion.diagonal() / tested.clamp(min=1)).sum()))
