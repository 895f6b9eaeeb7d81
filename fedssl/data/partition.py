"""The contract of a partition, and partitions that do not use labels.

Partitions by class are in class_partition.py, those that change a client's images in
input_shift.py.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Generator, Tensor

from fedssl.core.errors import ConfigError, DataError
from fedssl.core.settings import Registry, Settings
from fedssl.data.images import Dataset


class Partition(Settings, ABC):
    """A rule that assigns training images to clients; it draws from the given generator only."""

    # True if `split` decides how many clients there are, so that `clients` may be 0, the default.
    brings_clients: ClassVar[bool] = False

    @abstractmethod
    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        """Return client id -> ascending int64 indices into `data.train`, no image twice."""

    def shift(self, data: Dataset, parts: Mapping[str, Tensor]) -> Dataset:
        """Return the images as their clients see them, given each client's indices.

        The default returns them unchanged.
        """
        return data


PARTITIONS: Registry[Partition] = Registry("partition", "fedssl.partitions")


@PARTITIONS.register("iid")
class Iid(Partition):
    """Equal shares, drawn at random."""

    share: float = Field(1.0, gt=0, le=1)  # of its images that a client keeps; the rest are unused

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        order = torch.randperm(len(data.train), generator=generator)
        parts = torch.split(order, equal_sizes(len(order), clients))
        return by_client_id([first_share(part, self.share) for part in parts])


@PARTITIONS.register("quantity")
class Quantity(Partition):
    """Parts of different sizes: the given `shares` of all images, or drawn from Dirichlet(`alpha`).

    The images are drawn at random. With a small `alpha` a client may get none.
    """

    shares: tuple[float, ...] | None = None
    alpha: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if (self.shares is None) == (self.alpha is None):
            raise ValueError("give either shares or alpha")
        if self.shares is not None:
            smallest = min(self.shares, default=0)
            if smallest <= 0 or sum(self.shares) > 1 + 1e-9:
                raise ValueError("shares must be above 0 and sum to at most 1")
        return self

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        order = torch.randperm(len(data.train), generator=generator)
        check_client_count(len(order), clients)
        shares: Sequence[float]
        if self.alpha is not None:
            shares = numpy_generator(generator).dirichlet([self.alpha] * clients).tolist()
        else:
            shares = self.shares or ()
        if len(shares) != clients:
            raise ConfigError(f"partition quantity has {len(shares)} shares for {clients} clients")
        return by_client_id(split_by_shares(order, shares))


@PARTITIONS.register("natural")
class Natural(Partition):
    """Every image belongs to the owner that the data gives it."""

    brings_clients: ClassVar[bool] = True

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        if data.owners is None:
            raise ConfigError(
                'partition "natural" needs data with owners, such as a folder of clients'
            )
        return check_parts(data.owners, clients, len(data.train), source="the data")


@PARTITIONS.register("listed")
class Listed(Partition):
    """Index lists from a JSON file {client id: [indices]}."""

    brings_clients: ClassVar[bool] = True

    path: str

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        path = Path(self.path).expanduser()
        try:
            lists = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"the partition cannot be read from {path} ({error})") from None
        if not isinstance(lists, dict) or not all(map(_are_indices, lists.values())):
            raise DataError(f"{path} must hold {{client id: [indices]}}")
        parts = {name: torch.tensor(index, dtype=torch.int64) for name, index in lists.items()}
        return check_parts(parts, clients, len(data.train), source=str(path))


def _are_indices(values: object) -> bool:
    """True for a list of integers that fit into int64."""
    if not isinstance(values, list):
        return False
    return all(type(value) is int and abs(value) < 2**63 for value in values)


def check_parts(
    parts: Mapping[str, Tensor], clients: int, count: int, *, source: str
) -> dict[str, Tensor]:
    """Return each client's indices in ascending order; raise if they are not a partition."""
    if clients and len(parts) != clients:
        raise ConfigError(f"the experiment has {clients} clients but {source} has {len(parts)}")
    if not parts:
        raise DataError(f"{source} has no clients")
    indices = torch.cat(list(parts.values()))
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < count:
        raise DataError(f"{source} gives clients images outside the range of {count} images")
    if len(indices) and int(torch.bincount(indices).max()) > 1:
        raise DataError(f"{source} gives some image to a client twice or to two clients")
    return {str(name): index.sort().values for name, index in parts.items()}


def by_client_id(parts: Sequence[Tensor]) -> dict[str, Tensor]:
    """Name the parts "0".."K-1" and sort their indices.

    The numbers are padded with zeros, so that text sorts like numbers.
    """
    width = len(str(len(parts) - 1))
    return {f"{k:0{width}}": part.sort().values for k, part in enumerate(parts)}


def first_share(order: Tensor, share: float) -> Tensor:
    """Return the first entries, this share of all, at least one."""
    return order[: max(1, round(share * len(order)))]


def check_client_count(images: int, clients: int) -> None:
    """Raise ConfigError unless every client can get an image."""
    if clients < 1:
        raise ConfigError(f"clients must be at least 1 (got {clients})")
    if clients > images:
        raise ConfigError(
            f"{images} images are too few for {clients} clients, because training needs two images "
            f"per client: set clients to {max(1, images // 2)} or fewer"
        )


def equal_sizes(images: int, clients: int) -> list[int]:
    """Return the sizes of `clients` parts that differ by one at most, the larger ones first."""
    check_client_count(images, clients)
    size, larger = divmod(images, clients)
    return [size + 1] * larger + [size] * (clients - larger)


def split_by_shares(order: Tensor, shares: Sequence[float]) -> list[Tensor]:
    """Return consecutive pieces of `order` (n,), one for each share of the whole.

    Rounding errors do not accumulate.
    """
    pieces = []
    start = 0
    for share_end in accumulate(shares):
        end = round(min(share_end, 1.0) * len(order))
        pieces.append(order[start:end])
        start = end
    return pieces


def numpy_generator(generator: Generator) -> np.random.Generator:
    """Return a NumPy generator seeded by one draw of a torch generator.

    torch has no public Dirichlet distribution that accepts a generator.
    """
    return np.random.default_rng(int(torch.randint(2**63 - 1, (), generator=generator)))
