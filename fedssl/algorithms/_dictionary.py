"""FedCA's dictionary: projections of the clients' images, which every client receives."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.algorithm import SharedRows, Upload
from fedssl.core.seeds import derive
from fedssl.core.state.tree import Tree, number, tensor
from fedssl.method import Constants, Method
from fedssl.training.client import Client

# Entries in place of the number of an image.
OTHERS = -1
EMPTY = -2


def update_ensemble(client: Client, alpha: float, mode: Literal["eval", "train"]) -> Tensor:
    """Return Z ← αZ + (1 − α)z (n, k) over a client's clean images (Eq. 9)."""
    if mode == "eval":
        z = client.trainer.embed(client.pixels, "z")
    else:
        z = training_projections(client)
    ensemble = (1 - alpha) * z
    if "ensemble" in client.memory:  # Z is 0 at first
        ensemble += alpha * tensor(client.memory, "ensemble")
    return ensemble


def training_projections(client: Client) -> Tensor:
    """Return projections (n, k) of a client's clean images in training mode.

    BatchNorm has the statistics of a batch as in training: `train.batch` images, or all of a
    smaller client, drawn at random from all of them. The last batch is completed by images of the
    first, so that all batches have one size. Running statistics do not change.
    """
    stream = client.generator("dictionary batches")
    order = torch.randperm(client.count, generator=stream)
    size = min(client.trainer.settings.batch, client.count)
    missing = -client.count % size
    completed = torch.cat([order, order[:missing]])
    batches = []
    with client.trainer.train_mode() as method:
        for images in client.chunks(completed, size):
            batches.append(method.encode(method.clean(images), tracked=False).z)
    z = torch.cat(batches)[: client.count]
    return z[order.argsort().to(z.device)]


def choose_rows(client: Client, ensemble: Tensor, message: Tree) -> Tree:
    """Return the rows of an ensemble that a client shares, drawn at random each round.

    Rows have unit length, so the bias correction of Eq. 10 cancels out.
    """
    stream = client.generator("dictionary")
    order = torch.randperm(client.count, generator=stream).to(ensemble.device)
    chosen = order[: int(number(message, "share"))]
    return {"features": F.normalize(ensemble[chosen], dim=-1), "index": chosen}


class DictionaryBuilder:
    """Collect the rows of many uploads, an equal share of each, at most `capacity` in all.

    The number of uploads is unknown before the last one, so shares shrink as uploads arrive: a site
    never holds more than the rows it keeps and one upload.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.share = capacity
        self._parts: list[tuple[Tensor, ...]] = []
        self._uploads = 0

    def collect(self, upload: Upload) -> Upload:
        """Copy the first rows of an upload, which are in random order, and return the upload."""
        self._uploads += 1
        share = max(1, self.capacity // self._uploads)
        if share < self.share:
            self.share = share
            self._parts = [_first_rows(columns, share) for columns in self._parts]
        if self._uploads <= self.capacity:
            features = tensor(upload.tree, "features")
            index = tensor(upload.tree, "index")
            owner = torch.full_like(index, derive(upload.client))
            count = min(share, len(features), len(index))
            self._parts.append(_first_rows((features, owner, index), count))
        return upload

    def result(self) -> Tree:
        """Return features (n, k), their owners (n,) and image numbers (n,), and one share."""
        features, owner, index = (torch.cat(columns) for columns in zip(*self._parts, strict=True))
        return {"features": features, "owner": owner, "index": index, "share": self.share}


def _first_rows(columns: tuple[Tensor, ...], rows: int) -> tuple[Tensor, ...]:
    # Copies, because a view would keep the whole upload alive.
    return tuple(column[:rows].clone() for column in columns)


def empty_dictionary(capacity: int, method: Method) -> Tree:
    """Return the dictionary before the first round, in which each client shares `capacity` rows."""
    floats = method.state.floats
    numbers = floats.new_empty(0, dtype=torch.int64)
    return {
        "features": floats.new_empty(0, projection_width(method)),
        "owner": numbers,
        "index": numbers.clone(),
        "share": capacity,
    }


def dictionary_tensors(message: Tree, client_id: str, capacity: int) -> Constants:
    """Return the tensors of an objective, whose shapes are the same in every round.

    `dictionary` (capacity, k) has rows of unit length. `entry` (capacity,) is the number of the
    client's own image that a row was made of, OTHERS or EMPTY.
    """
    features = tensor(message, "features")[:capacity]
    owner = tensor(message, "owner")[:capacity]
    index = tensor(message, "index")[:capacity]
    spare = capacity - len(features)
    entry = torch.where(owner == derive(client_id), index, OTHERS)
    unit = F.normalize(features, dim=-1)  # uploads may hold rows of another length
    return {
        "dictionary": F.pad(unit, (0, 0, 0, spare)),
        "entry": F.pad(entry, (0, spare), value=EMPTY),
    }


def rows_of(site: Tree, client_id: str) -> SharedRows | None:
    """Return the rows of one client in a dictionary; None if it has none."""
    chosen = tensor(site, "owner") == derive(client_id)
    if not bool(chosen.any()):
        return None
    return SharedRows(tensor(site, "features")[chosen], tensor(site, "index")[chosen, None])


@torch.no_grad()
def projection_width(method: Method) -> int:
    """Return the width k of projections."""
    training = method.training
    method.eval()
    z: Tensor = method.projector(method.state.floats.new_zeros(1, method.features))
    method.train(training)
    return z.shape[1]
