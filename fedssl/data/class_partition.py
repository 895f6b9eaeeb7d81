"""Partitions in which clients differ in their classes; they use labels once, before training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Generator, Tensor

from fedssl.core.errors import ConfigError, DataError
from fedssl.data.images import Dataset, Images
from fedssl.data.partition import (
    PARTITIONS,
    Partition,
    by_client_id,
    check_client_count,
    equal_sizes,
    first_share,
    numpy_generator,
)

_MAX_DRAWS = 1000

Table = npt.NDArray[np.float64]


@PARTITIONS.register("classes")
class Classes(Partition):
    """`per_client` = l of C classes for each of K clients (FedU, FedEMA, FedCA).

    Each class is cut into K·l/C equal sets. Client k holds classes k·l … k·l + l - 1, counted
    modulo C; with `shuffled` the classes are put in a random order first. `per_client` = 1: one
    class each.
    """

    per_client: int = Field(ge=1)
    shuffled: bool = False
    share: float = Field(1.0, gt=0, le=1)  # of its images of each class that a client keeps

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        groups = _group_by_class(data.train, generator)
        classes = len(groups)
        held = self.per_client
        check_client_count(len(data.train), clients)
        if held > classes or (clients * held) % classes:
            raise ConfigError(
                f"{clients} clients × {held} classes each cannot be dealt evenly from {classes} "
                f"classes: per_client must be at most {classes} and {clients} × per_client a "
                "multiple of it"
            )
        order = torch.arange(classes)
        if self.shuffled:
            order = torch.randperm(classes, generator=generator)
        sets_per_class = clients * held // classes
        sets = [iter(group.tensor_split(sets_per_class)) for group in groups]
        parts = []
        for held_classes in order.repeat(sets_per_class).view(clients, held).tolist():
            pieces = []
            for label in held_classes:
                pieces.append(first_share(next(sets[label]), self.share))
            parts.append(torch.cat(pieces))
        return by_client_id(parts)


@PARTITIONS.register("dirichlet")
class Dirichlet(Partition):
    """Each class is shared among the clients in proportions drawn from Dirichlet(`alpha`).

    The draw is repeated until every client holds 0.5 to 1.5 times N/K images (Dec-SSL). With
    `balanced`, all clients hold equally many images instead: each draws its proportions of classes
    from Dirichlet(`alpha`), which are then filled without replacement.
    """

    alpha: float = Field(gt=0)
    balanced: bool = False

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        groups = _group_by_class(data.train, generator)
        return split_by_dirichlet(
            groups, clients, self.alpha, balanced=self.balanced, generator=generator
        )


def split_by_dirichlet(
    groups: Sequence[Tensor], clients: int, alpha: float, *, balanced: bool, generator: Generator
) -> dict[str, Tensor]:
    """Share groups of indices, one for each kind of image, among clients as `Dirichlet` does."""
    total = sum(map(len, groups))
    sizes = equal_sizes(total, clients)
    random = numpy_generator(generator)
    if balanced:
        proportions = random.dirichlet([alpha] * len(groups), clients)  # (K, C)
        return by_client_id(_fill_clients(groups, proportions, sizes, random))
    counts = np.array(list(map(len, groups)))
    for _ in range(_MAX_DRAWS):
        shares = random.dirichlet([alpha] * clients, len(groups))  # (C, K)
        ends = np.rint(shares.cumsum(1) * counts[:, None]).astype(np.int64)
        ends[:, -1] = counts
        relative_sizes = np.diff(ends, prepend=0).sum(0) / (total / clients)
        if relative_sizes.min() >= 0.5 and relative_sizes.max() <= 1.5:
            return by_client_id(_cut_and_join(groups, ends))
    raise ConfigError(
        f"none of {_MAX_DRAWS:,} draws from Dirichlet({alpha:g}) gave each of {clients} clients "
        f"0.5 to 1.5 times its equal share of {total} images: "
        "set balanced = true or choose a larger alpha"
    )


def _cut_and_join(groups: Sequence[Tensor], ends: npt.NDArray[np.int64]) -> list[Tensor]:
    """Cut each group at its row of `ends` (C, K); join the k-th pieces of all groups."""
    pieces = []
    for group, row in zip(groups, ends, strict=True):
        pieces.append(group.tensor_split(row[:-1].tolist()))
    return list(map(torch.cat, zip(*pieces, strict=True)))


def _fill_clients(
    groups: Sequence[Tensor], proportions: Table, sizes: list[int], random: np.random.Generator
) -> list[Tensor]:
    """Fill the clients' places in random order, by classes drawn from their proportions (K, C).

    An exhausted class is removed from all proportions. A client with no proportions left draws from
    the remaining images, in proportion to their number.
    """
    stacks = [group.tolist() for group in groups]
    held: list[list[int]] = [[] for _ in sizes]
    remaining = np.array(list(map(len, stacks)), dtype=np.float64)
    proportions = proportions * (remaining > 0)
    cumulative = _cumulative_probabilities(proportions, remaining)
    places = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    draws = random.random(len(places))
    for client, draw in zip(places.tolist(), draws.tolist(), strict=True):
        chosen = int(np.searchsorted(cumulative[client], draw, side="right"))
        held[client].append(stacks[chosen].pop())
        remaining[chosen] -= 1
        if not stacks[chosen]:
            proportions[:, chosen] = 0
            cumulative = _cumulative_probabilities(proportions, remaining)
    return list(map(torch.tensor, held))


def _cumulative_probabilities(proportions: Table, remaining: Table) -> Table:
    """Return the cumulative probabilities (K, C) of the classes.

    Rows without proportions follow the numbers of remaining images.
    """
    has_proportions = proportions.sum(1, keepdims=True) > 1e-12
    sums = np.where(has_proportions, proportions, remaining).cumsum(1)
    return np.asarray(sums / np.maximum(sums[:, -1:], np.finfo(np.float64).tiny))


@PARTITIONS.register("skew")
class Skew(Partition):
    """A share `beta` of the images is dealt uniformly, the rest in blocks, sorted by class."""

    beta: float = Field(ge=0, le=1)

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        count = len(data.train)
        order = torch.randperm(count, generator=generator)
        sizes = equal_sizes(count, clients)
        uniform, rest = order.tensor_split([round(self.beta * count)])
        rest = rest[_labels(data.train)[rest].argsort(stable=True)]
        uniform_parts = uniform.tensor_split(clients)
        block_sizes = [size - len(part) for size, part in zip(sizes, uniform_parts, strict=True)]
        blocks = torch.split(rest, block_sizes)
        return by_client_id(list(map(torch.cat, zip(uniform_parts, blocks, strict=True))))


def _labels(images: Images) -> Tensor:
    if not images.labelled:
        raise DataError("this partition is by class, but the training images have no labels")
    return images.labels


def _group_by_class(images: Images, generator: Generator) -> list[Tensor]:
    """Return the indices of each class, shuffled."""
    labels = _labels(images)
    classes = len(images.classes) or int(labels.max()) + 1
    return shuffled_groups(labels, classes, generator)


def shuffled_groups(kinds: Tensor, count: int, generator: Generator) -> list[Tensor]:
    """Return the indices of each of `count` kinds, shuffled, given int64 kinds (N,)."""
    order = torch.randperm(len(kinds), generator=generator)
    return [order[kinds[order] == kind] for kind in range(count)]
