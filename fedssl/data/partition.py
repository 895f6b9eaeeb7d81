"""How images are dealt to clients, by rules that never look at a label; those that do: class_partition.py.

Clients whose images look otherwise: shift.py.
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

from fedssl.data.images import Dataset
from fedssl.errors import ConfigError, DataError
from fedssl.settings import Registry, Settings


class Partition(Settings, ABC):
    """A rule that deals training images to clients; every draw comes from the generator given."""

    needs_labels: ClassVar[bool] = False
    brings_clients: ClassVar[bool] = False  # the number of clients need not be given (0): the data has it

    @abstractmethod
    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        """Client id -> ascending int64 indices into `data.train`; no image has two owners."""

    def shift(self, data: Dataset, parts: Mapping[str, Tensor]) -> Dataset:
        """The images as their clients see them, given who has which; as they are unless clients see differently."""
        return data


PARTITIONS: Registry[Partition] = Registry("partition", "fedssl.partitions")


@PARTITIONS.register("iid")
class Iid(Partition):
    """Equal shares, drawn at random."""

    share: float = Field(1.0, gt=0, le=1)  # of its images, that a client really has; the others are nobody's

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        order = torch.randperm(len(data.train), generator=generator)
        return deal([some(part, self.share) for part in torch.split(order, equal_sizes(len(order), clients))])


@PARTITIONS.register("quantity")
class Quantity(Partition):
    """Shares of different sizes: as `shares` of all images says, or drawn from Dirichlet(`alpha`).

    Which images these are is random. With small `alpha` a client may get none.
    """

    shares: tuple[float, ...] | None = None
    alpha: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.shares is None) == (self.alpha is None):
            raise ValueError("give either shares or alpha")
        if self.shares is not None and (min(self.shares, default=0) <= 0 or sum(self.shares) > 1 + 1e-9):
            raise ValueError("shares must be above 0 and sum to at most 1")
        return self

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        order = torch.randperm(len(data.train), generator=generator)
        equal_sizes(len(order), clients)  # for its refusals
        if self.alpha is not None:
            shares: Sequence[float] = numpy_from(generator).dirichlet([self.alpha] * clients).tolist()
        else:
            shares = self.shares or ()
        if len(shares) != clients:
            raise ConfigError(f"partition quantity has {len(shares)} shares for {clients} clients")
        return deal(cut(order, shares))


@PARTITIONS.register("natural")
class Natural(Partition):
    """Every image stays with the owner the data gives it."""

    brings_clients: ClassVar[bool] = True

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        if data.owners is None:
            raise ConfigError('partition "natural" needs data with owners, such as a folder of clients')
        return _checked(data.owners, clients, len(data.train), "the data")


@PARTITIONS.register("listed")
class Listed(Partition):
    """Index lists from a JSON file {client id: [indices]}."""

    brings_clients: ClassVar[bool] = True

    path: str

    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        path = Path(self.path).expanduser()
        try:
            lists = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as failure:
            raise DataError(f"the partition cannot be read from {path} ({failure})") from None
        if not isinstance(lists, dict) or not all(_are_indices(index) for index in lists.values()):
            raise DataError(f"{path} must hold {{client id: [indices]}}")
        parts = {name: torch.tensor(index, dtype=torch.int64) for name, index in lists.items()}
        return _checked(parts, clients, len(data.train), str(path))


def _are_indices(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and abs(value) < 2**63 for value in values)


def _checked(parts: Mapping[str, Tensor], clients: int, count: int, where: str) -> dict[str, Tensor]:
    if clients and len(parts) != clients:
        raise ConfigError(f"the experiment has {clients} clients but {where} has {len(parts)}")
    if not parts:
        raise DataError(f"{where} has no clients")
    every = torch.cat(list(parts.values()))
    if len(every) and not 0 <= int(every.min()) <= int(every.max()) < count:
        raise DataError(f"{where} gives clients images outside the {count} there are")
    if len(every) and int(torch.bincount(every).max()) > 1:
        raise DataError(f"{where} gives some image to a client twice or to two clients")
    return {str(name): index.sort().values for name, index in parts.items()}


def deal(parts: Sequence[Tensor]) -> dict[str, Tensor]:
    """Parts named "0".."K-1", zero-padded so that text sorts like numbers; their indices in order."""
    width = len(str(len(parts) - 1))
    return {f"{k:0{width}}": part.sort().values for k, part in enumerate(parts)}


def some(order: Tensor, share: float) -> Tensor:
    """The first of them, a share of all, at least one."""
    return order[: max(1, round(share * len(order)))]


def equal_sizes(count: int, clients: int) -> list[int]:
    """`count` in `clients` sizes that differ by one at most, the larger ones first."""
    if clients < 1:
        raise ConfigError(f"there must be at least one client, not {clients}")
    if clients > count:
        raise ConfigError(f"{count} images are too few for {clients} clients")
    return [count // clients + (k < count % clients) for k in range(clients)]


def cut(order: Tensor, shares: Sequence[float]) -> list[Tensor]:
    """Consecutive pieces of `order` (n,), each its share of the whole; rounding errors do not add up."""
    ends = [round(min(end, 1.0) * len(order)) for end in accumulate(shares)]
    return [order[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def numpy_from(generator: Generator) -> np.random.Generator:
    """NumPy's generator, seeded by a draw: torch has no public Dirichlet that takes a generator."""
    return np.random.default_rng(int(torch.randint(2**63 - 1, (), generator=generator)))
