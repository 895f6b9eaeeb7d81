"""Partitions that make clients differ in their classes. They look at labels, once, before any training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Generator, Tensor

from fedssl.data.images import Dataset, Images
from fedssl.data.partition import PARTITIONS, Partition, deal, equal_sizes, numpy_from, some
from fedssl.errors import ConfigError, DataError

_TRIES = 1000

Table = npt.NDArray[np.float64]


@PARTITIONS.register("classes")
class Classes(Partition):
    """`per_client` = l of C classes for each of K clients (FedU, FedEMA, FedCA).

    Each class is cut into K·l/C equal sets. Client k holds classes k·l … k·l + l - 1, counted modulo C; with
    `shuffled` the classes are put in a random order first. `per_client` = 1: one class each.
    """

    needs_labels: ClassVar[bool] = True
    per_client: int = Field(ge=1)
    shuffled: bool = False
    share: float = Field(1.0, gt=0, le=1)  # of its images of each class, that a client really has

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        piles = _piles(data.train, generator)
        classes, held = len(piles), self.per_client
        equal_sizes(len(data.train), clients)  # for its refusals
        if held > classes or (clients * held) % classes:
            raise ConfigError(
                f"{clients} clients × {held} classes each cannot be dealt evenly from {classes} classes: "
                f"per_client must be at most {classes} and {clients} × per_client a multiple of it"
            )
        order = torch.randperm(classes, generator=generator) if self.shuffled else torch.arange(classes)
        sets = {c: iter(piles[c].tensor_split(clients * held // classes)) for c in range(classes)}
        dealt = order.repeat(clients * held // classes).view(clients, held).tolist()
        return deal([torch.cat([some(next(sets[c]), self.share) for c in row]) for row in dealt])


@PARTITIONS.register("dirichlet")
class Dirichlet(Partition):
    """Each class is shared among the clients in proportions drawn from Dirichlet(`alpha`).

    Drawn again until every client holds 0.5 to 1.5 times N/K images (Dec-SSL). With `balanced`, clients hold
    equally many images instead: each draws its own proportions of classes from Dirichlet(`alpha`), which are
    then filled without replacement.
    """

    needs_labels: ClassVar[bool] = True
    alpha: float = Field(gt=0)
    balanced: bool = False

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        return by_dirichlet(_piles(data.train, generator), clients, self.alpha, self.balanced, generator)


def by_dirichlet(
    piles: Sequence[Tensor], clients: int, alpha: float, balanced: bool, generator: Generator
) -> dict[str, Tensor]:
    """Piles of indices, one for each kind of image, shared as `Dirichlet` says."""
    total = sum(map(len, piles))
    sizes = equal_sizes(total, clients)
    random = numpy_from(generator)
    if balanced:
        return deal(_fill(piles, random.dirichlet([alpha] * len(piles), clients), sizes, random))
    counts = np.array([len(pile) for pile in piles])
    for _ in range(_TRIES):
        shares = random.dirichlet([alpha] * clients, len(piles))  # (C, K)
        ends = np.rint(shares.cumsum(1) * counts[:, None]).astype(np.int64)
        ends[:, -1] = counts
        held = np.diff(ends, prepend=0).sum(0) / (total / clients)
        if held.min() >= 0.5 and held.max() <= 1.5:
            pieces = [pile.tensor_split(row[:-1].tolist()) for pile, row in zip(piles, ends, strict=True)]
            return deal([torch.cat(column) for column in zip(*pieces, strict=True)])
    raise ConfigError(
        f"none of {_TRIES:,} draws from Dirichlet({alpha:g}) gave each of {clients} clients "
        f"0.5 to 1.5 times its equal share of {total} images: "
        "set balanced = true or take a larger alpha"
    )


def _fill(piles: Sequence[Tensor], wish: Table, sizes: list[int], random: np.random.Generator) -> list[Tensor]:
    """Fill the clients' places in random order, each from a class drawn from the client's `wish` (K, C).

    A class that runs out is struck from all wishes; a client without any wish left takes what there is, in
    proportion.
    """
    tops = [pile.tolist() for pile in piles]
    held: list[list[int]] = [[] for _ in sizes]
    left = np.array([len(top) for top in tops], dtype=np.float64)
    wish = wish * (left > 0)
    ladder = _ladder(wish, left)
    places = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    for client, height in zip(places.tolist(), random.random(len(places)).tolist(), strict=True):
        chosen = int(np.searchsorted(ladder[client], height, side="right"))
        held[client].append(tops[chosen].pop())
        left[chosen] -= 1
        if not tops[chosen]:
            wish[:, chosen] = 0
            ladder = _ladder(wish, left)
    return [torch.tensor(index) for index in held]


def _ladder(wish: Table, left: Table) -> Table:
    """Cumulative probabilities (K, C) of the classes; rows without a wish follow what is left."""
    wish = np.where(wish.sum(1, keepdims=True) > 1e-12, wish, left)
    steps = wish.cumsum(1)
    return np.asarray(steps / np.maximum(steps[:, -1:], np.finfo(np.float64).tiny))


@PARTITIONS.register("skew")
class Skew(Partition):
    """A share `beta` of the images is dealt uniformly, the rest sorted by class and dealt in blocks."""

    needs_labels: ClassVar[bool] = True
    beta: float = Field(ge=0, le=1)

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        count = len(data.train)
        order = torch.randperm(count, generator=generator)
        sizes = equal_sizes(count, clients)
        uniform, rest = order.tensor_split([round(self.beta * count)])
        rest = rest[_labels(data.train)[rest].argsort(stable=True)]
        spread = uniform.tensor_split(clients)
        blocks = torch.split(rest, [size - len(part) for size, part in zip(sizes, spread, strict=True)])
        return deal([torch.cat(both) for both in zip(spread, blocks, strict=True)])


def _labels(images: Images) -> Tensor:
    if not images.labelled:
        raise DataError("this partition goes by class, but the training images have no labels")
    return images.labels


def _piles(images: Images, generator: Generator) -> list[Tensor]:
    """The indices of each class, shuffled."""
    labels = _labels(images)
    return piled(labels, len(images.classes) or int(labels.max()) + 1, generator)


def piled(kinds: Tensor, count: int, generator: Generator) -> list[Tensor]:
    """The indices of each of `count` kinds, shuffled, given int64 kinds (N,)."""
    order = torch.randperm(len(kinds), generator=generator)
    return [order[kinds[order] == kind] for kind in range(count)]
