"""What a federated algorithm is: both of its halves in one small frozen value, with no state of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fedssl.client import Client
from fedssl.layout import Layout
from fedssl.method import Batch, Given, Method, Output
from fedssl.settings import Registry, Settings
from fedssl.tree import State, Tree


class Rows(NamedTuple):
    """What a tensor in an upload must look like; None in the shape: any number of rows."""

    shape: tuple[int | None, ...]
    dtype: torch.dtype


class Features(NamedTuple):
    """Rows of unit length that clients show each other: a bad one is left out, and the rest of its upload counts.

    `columns` are keys of `Rows` beside it, with a word on each row; they lose the same ones.
    """

    width: int
    most: int  # that a client may share
    columns: tuple[str, ...] = ()

    @property
    def rows(self) -> Rows:
        return Rows((None, self.width), torch.float32)


Spec = Layout | Rows | Features | range | type[float] | type[int]  # range: an integer in it


class Heard(NamedTuple):
    """What came of asking one client."""

    client: str
    images: int
    tree: Tree | None  # its upload; None: it was dropped


class Upload(NamedTuple):
    """What one client sent, with the weight the topology gives it at this site."""

    client: str
    weight: float
    tree: Tree


class Averaging(Protocol):
    """A mean in the making; median, trimmed or noised means are others."""

    def add(self, state: State, weight: float) -> None: ...

    def result(self) -> State: ...


class Algorithm(Settings, ABC):
    """Frozen hyper-parameters and pure functions. Sites, messages, uploads and memories are Trees.

    A site is where uploads are merged: the server, or each peer of a graph.
    """

    needs_server: ClassVar[bool] = False
    personalises: ClassVar[bool] = False  # whether clients end with models of their own: see `personal`
    one_mean: ClassVar[bool] = True  # whether a server averages all uploads of a round into one model
    needs_pairs: ClassVar[bool] = False  # a method that makes two views of each image, of one kind
    weights: Literal["size", "uniform"] = "size"  # how a server weighs its clients

    @property
    def requires(self) -> frozenset[str]:
        """Parts the method must provide."""
        return frozenset()

    @property
    def needs_public(self) -> bool:
        """Whether clients, and `init`, need images that everybody may see."""
        return False

    @property
    def warning(self) -> str | None:
        """Return what leaves the clients in clear, if anything.

        It is printed whenever a run starts or resumes, also with `--quiet`, and is in the rounds log
        and in `results.json`.
        """
        return None

    @abstractmethod
    def wire(self, method: Method) -> Mapping[str, Spec]:
        """What an upload looks like, key by key; the guard drops what differs, and rows of `Features` one by one."""

    @abstractmethod
    def init(self, home: Client) -> Tree:
        """A site's first state; `home` holds the freshly built method and, if `needs_public`, public images."""

    def enrol(self, site: Tree, clients: Mapping[str, int]) -> Tree:
        """A site's first state, once it is told who is at home there: clients, with their numbers among all. It may
        later be asked for a message to somebody else."""
        return site

    @abstractmethod
    def broadcast(self, site: Tree, client_id: str) -> Tree:
        """What a site sends to a client."""

    @abstractmethod
    def client(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        """One client's round: (upload, what it remembers until its next one)."""

    def reference(self, site: Tree) -> Tree:
        """Models that a site holds without sending them, under the keys of uploads: the guard compares the running
        statistics of uploads with these."""
        return {}

    def renamed(self, upload: Tree) -> Mapping[str, str]:
        """Keys of an upload's models that were sent under another key, with that one: an upload is measured from the
        models its client was sent. Asked once the upload is what `wire` says."""
        return {}

    @abstractmethod
    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        """The site's next state. Uploads come one by one in the clients' order; `mean()` starts a mean."""

    @abstractmethod
    def export(self, site: Tree) -> dict[str, State]:
        """Models worth evaluating, by name; none where no site has a whole one."""

    def personal(self, message: Tree, memory: Tree) -> State | None:
        """The model a client uses for itself, given what its site would send it now and what it remembers; None: it has
        none of its own. Pure, and no part of training. Asked for only where the algorithm `personalises`."""
        return None

    def draw(self, n: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        """Random numbers the objective needs in one step of n images: `batch.draws` has them beside the method's."""
        return {}

    def given(self, client: Client, message: Tree) -> Given:
        """Tensors the objective needs beside the batch, made anew each round: reference weights, remote features."""
        return {}

    def objective(self, method: Method, batch: Batch, out: Output, given: Given) -> Tensor:
        """The local loss. A bound method of a frozen value, never a closure: a step compiled once serves every
        client and round, and whatever changes between them comes in through `given`."""
        return method.loss(out, given)


ALGORITHMS: Registry[Algorithm] = Registry("algorithm", "fedssl.algorithms")
