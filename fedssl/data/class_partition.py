"""Partitions in which clients differ in their classes; they use labels once, before training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator
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
Ends = npt.NDArray[np.int64]  # (C, K): where each class is cut, one piece per client


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
                f"classes: per_client must be at most {classes}, and {clients} × per_client must "
                f"be a multiple of {classes}"
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
    `capped`, classes are dealt one after the other, and a client that already holds N/K images gets
    none of the next ones; the other clients' proportions are rescaled. So do the samplers in the
    code of Dec-SSL and of FedEMA. With `balanced`, all clients hold equally many images instead:
    each draws its proportions of classes from Dirichlet(`alpha`), which are then filled without
    replacement.
    """

    added_later: ClassVar = ("capped", "share")

    alpha: float = Field(gt=0)
    balanced: bool = False
    capped: bool = False  # a client that holds N/K images gets no more
    # of its images that a client keeps: the first ones in order of class, as in Dec-SSL's code, so
    # that the last classes lose most
    share: float = Field(1.0, gt=0, le=1)

    @model_validator(mode="after")
    def _check_one_rule(self) -> Self:
        if self.capped and self.balanced:
            raise ValueError(
                "balanced and capped cannot both be true: balanced clients already have equal "
                "numbers of images. Set one of them to false"
            )
        return self

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        return self.deal(_group_by_class(data.train, generator), clients, generator)

    def deal(
        self, groups: Sequence[Tensor], clients: int, generator: Generator
    ) -> dict[str, Tensor]:
        """Share groups of indices, one for each kind of image, among clients."""
        total = sum(map(len, groups))
        sizes = equal_sizes(total, clients)
        random = numpy_generator(generator)
        if self.balanced:
            proportions = random.dirichlet([self.alpha] * len(groups), clients)  # (K, C)
            parts = _fill_clients(groups, proportions, sizes, random)
        else:
            parts = _cut_and_join(groups, self._even_ends(groups, clients, random))
        return by_client_id(_first_classes(parts, groups, self.share))

    def _even_ends(
        self, groups: Sequence[Tensor], clients: int, random: np.random.Generator
    ) -> Ends:
        """Draw until all clients hold about equally many images; return where groups are cut."""
        counts = np.array(list(map(len, groups)))
        for _ in range(_MAX_DRAWS):
            ends = draw_ends(counts, clients, self.alpha, capped=self.capped, random=random)
            if ends is not None and has_even_sizes(ends):
                return ends
        advice = "set partition.balanced = true in place of partition.capped"
        if not self.capped:
            advice = "set partition.capped = true or partition.balanced = true"
        raise ConfigError(
            f"none of {_MAX_DRAWS:,} draws from Dirichlet({self.alpha:g}) gave every one of "
            f"{clients} clients between 0.5 and 1.5 times the mean number of images "
            f"({counts.sum() / clients:g}): {advice}, or choose a larger partition.alpha"
        )


def draw_ends(
    counts: npt.NDArray[np.int64],
    clients: int,
    alpha: float,
    *,
    capped: bool,
    random: np.random.Generator,
) -> Ends | None:
    """Return where classes of `counts` (C,) images are cut (C, K), by one draw of proportions.

    None if no client below the cap has a proportion above 0. (There, the authors' code divides by
    zero.)
    """
    if not capped:
        shares = random.dirichlet([alpha] * clients, len(counts))  # (C, K)
        ends = np.rint(shares.cumsum(1) * counts[:, None]).astype(np.int64)
        ends[:, -1] = counts
        return ends
    ends = np.zeros((len(counts), clients), dtype=np.int64)
    held = np.zeros(clients)
    for label, count in enumerate(counts):
        share = random.dirichlet([alpha] * clients) * (held < counts.sum() / clients)
        if not share.sum():
            return None
        ends[label] = (share / share.sum()).cumsum() * count  # truncated, as in the authors' code
        ends[label, -1] = count
        held += np.diff(ends[label], prepend=0)
    return ends


def has_even_sizes(ends: Ends) -> bool:
    """True if cuts (C, K) give every client 0.5 to 1.5 times its equal share of all images."""
    sizes = np.diff(ends, prepend=0).sum(0)
    relative_sizes = sizes / (sizes.sum() / len(sizes))
    return bool(relative_sizes.min() >= 0.5 and relative_sizes.max() <= 1.5)


def _first_classes(
    parts: Sequence[Tensor], groups: Sequence[Tensor], share: float
) -> Sequence[Tensor]:
    """Return this share of each part: its first images in the order of the groups."""
    if share == 1:
        return parts
    kinds = torch.zeros(sum(map(len, groups)), dtype=torch.int64)
    for kind, group in enumerate(groups):
        kinds[group] = kind
    kept = []
    for part in parts:
        by_kind = part[kinds[part].argsort(stable=True)]
        kept.append(first_share(by_kind, share))
    return kept


def _cut_and_join(groups: Sequence[Tensor], ends: Ends) -> list[Tensor]:
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
    draws = random.random(len(places))  # nosec B311 # a seeded partition, no secret
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

    added_later: ClassVar = ("share",)

    beta: float = Field(ge=0, le=1)
    # of its images that a client keeps: first those of its block, as in Dec-SSL's code, so that the
    # uniform ones are the first to go
    share: float = Field(1.0, gt=0, le=1)

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        count = len(data.train)
        order = torch.randperm(count, generator=generator)
        sizes = equal_sizes(count, clients)
        uniform, rest = order.tensor_split([round(self.beta * count)])
        rest = rest[_labels(data.train)[rest].argsort(stable=True)]
        uniform_parts = uniform.tensor_split(clients)
        block_sizes = [size - len(part) for size, part in zip(sizes, uniform_parts, strict=True)]
        blocks = torch.split(rest, block_sizes)
        parts = []
        for block_then_uniform in zip(blocks, uniform_parts, strict=True):
            parts.append(first_share(torch.cat(block_then_uniform), self.share))
        return by_client_id(parts)


def _labels(images: Images) -> Tensor:
    if not images.labelled:
        raise DataError(
            "this partition assigns images by class, but the training images have no labels: "
            "add labels, or choose a partition that needs none, such as iid"
        )
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
