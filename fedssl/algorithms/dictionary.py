"""FedCA's dictionary: projections of clients' images, an equal share of each client's, that all clients get to see."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedssl.algorithm import Averaging, Features, Rows, Spec, Upload
from fedssl.algorithms.averaged import Averaged
from fedssl.client import Client
from fedssl.method import Given, Method
from fedssl.seeds import derive
from fedssl.tree import Tree, number, tensor

OTHERS, EMPTY = -1, -2  # in place of the number of an image


class Dictionary(Averaged, ABC):
    """Beside models, clients send projections of some of their images. A site concatenates them, with a column that
    says whose they are and one that says of which image, and sends them to all in the next round."""

    dictionary: int = Field(1024, ge=0, le=1_000_000)  # projections that all clients share, the paper's K; 0: none
    alpha: float = Field(0.5, ge=0, lt=1)  # how much of a shared projection is from earlier rounds

    @property
    def requires(self) -> frozenset[str]:
        return frozenset({"projector"})

    @property
    def warning(self) -> str | None:
        shared = "projections of private images are shared with all clients, in clear: dictionary = 0 shares none"
        return shared if self.dictionary else None

    def wire(self, method: Method) -> Mapping[str, Spec]:
        models = super().wire(method)
        if not self.dictionary:
            return models
        features = Features(width(method), self.dictionary, columns=("index",))
        return {**models, "features": features, "index": Rows((None,), torch.int64)}

    def init(self, home: Client) -> Tree:
        rows = nothing_gathered(self.dictionary, home.method) if self.dictionary else {}
        return {**super().init(home), **rows}

    def given(self, client: Client, message: Tree) -> Given:
        return as_given(message, client.id, self.dictionary) if self.dictionary else {}

    def client(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        upload, memory = super().client(client, message)
        if not self.dictionary:
            return upload, memory
        ensemble = (1 - self.alpha) * client.trainer.embed(client.pixels, "z")  # Eq. 9, where Z is 0 at first
        if "ensemble" in client.memory:
            ensemble += self.alpha * tensor(client.memory, "ensemble")
        order = torch.randperm(client.count, generator=client.generator("dictionary")).to(ensemble.device)
        chosen = order[: int(number(message, "share"))]
        rows = {"features": F.normalize(ensemble[chosen], dim=-1), "index": chosen}  # Eq. 10: the bias cancels out
        return {**upload, **rows}, {**memory, "ensemble": ensemble}

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        models = {"model": site["model"]}
        if not self.dictionary:
            return {**site, **super().merge(models, uploads, mean)}
        rows = Gathering(self.dictionary)
        return {**site, **super().merge(models, map(rows, uploads), mean), **rows.result()}


class Gathering:
    """The rows of many uploads, of each as many as of any other, at most `capacity` in all.

    How many clients will be heard is not known before the last, so shares shrink as uploads come: a site never holds
    more than it keeps and one upload.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.share = capacity, capacity
        self._parts: list[tuple[Tensor, ...]] = []
        self._heard = 0

    def __call__(self, upload: Upload) -> Upload:
        """Take the first rows of an upload, which come in random order, and pass it on."""
        self._heard += 1
        share = max(1, self.capacity // self._heard)
        if share < self.share:
            self.share, self._parts = share, [_cut(part, share) for part in self._parts]
        if self._heard <= self.capacity:
            features, index = tensor(upload.tree, "features"), tensor(upload.tree, "index")
            owner = torch.full_like(index, derive(upload.client))
            self._parts.append(_cut((features, owner, index), min(share, len(features), len(index))))
        return upload

    def result(self) -> Tree:
        """Features (n, k), whose each is (n,), of which image of theirs (n,), and the share of each client."""
        features, owner, index = (torch.cat(columns) for columns in zip(*self._parts, strict=True))
        return {"features": features, "owner": owner, "index": index, "share": self.share}


def _cut(part: tuple[Tensor, ...], rows: int) -> tuple[Tensor, ...]:
    return tuple(column[:rows].clone() for column in part)  # a view would keep all of the upload alive


def nothing_gathered(capacity: int, method: Method) -> Tree:
    """Before the first round: no rows yet, and a client is asked for as many as it would take to fill it alone."""
    row = method.state.floats
    numbers = row.new_empty(0, dtype=torch.int64)
    return {"features": row.new_empty(0, width(method)), "owner": numbers, "index": numbers.clone(), "share": capacity}


def as_given(message: Tree, client_id: str, capacity: int) -> Given:
    """What a client's objective sees, always of one shape: `dictionary` (capacity, k), unit rows, and `entry`
    (capacity,): the number of the client's own image a row is of, OTHERS or EMPTY."""
    features, owner, index = (tensor(message, key)[:capacity] for key in ("features", "owner", "index"))
    spare = capacity - len(features)
    entry = torch.where(owner == derive(client_id), index, OTHERS)
    unit = F.normalize(features, dim=-1)  # whatever was sent
    return {"dictionary": F.pad(unit, (0, 0, 0, spare)), "entry": F.pad(entry, (0, spare), value=EMPTY)}


@torch.no_grad()
def width(method: Method) -> int:
    """Of projections, the k above."""
    training = method.training
    method.eval()
    found: Tensor = method.projector(method.state.floats.new_zeros(1, method.features))
    method.train(training)
    return found.shape[1]
