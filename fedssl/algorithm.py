"""Base class of federated algorithms: the client part and the server part.

An algorithm is an immutable record of settings, and its functions are pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fedssl.core.settings import Registry, Settings
from fedssl.core.state.layout import Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.method import Batch, Constants, Method, Output
from fedssl.training.client import Client


class TensorSpec(NamedTuple):
    """Schema of a tensor in an upload; None in the shape allows any number of rows."""

    shape: tuple[int | None, ...]
    dtype: torch.dtype


class Features(NamedTuple):
    """Schema of unit-length rows that clients share; invalid rows are dropped one by one.

    The rest of the upload still counts. `columns` names other tensors of the upload with one row
    per feature: rows dropped here are dropped there too.
    """

    width: int
    max_rows: int  # that one client may share
    columns: tuple[str, ...] = ()

    @property
    def rows(self) -> TensorSpec:
        """Return the schema of the features as a plain tensor."""
        return TensorSpec((None, self.width), torch.float32)


class SharedRows(NamedTuple):
    """Features that a site received of one client, and the client's images they were made of."""

    features: Tensor  # (n, k)
    images: Tensor  # (n, m) numbers of the client's images; m > 1 for mixtures


Sites = Mapping[str, Tree]  # the state of each site, by its name
Spec = Layout | TensorSpec | Features | range | type[float] | type[int]
"""The required format of one value of an upload: a Layout for a model, TensorSpec or Features for a
tensor, a range for an integer within it, float or int for a number."""


class Upload(NamedTuple):
    """One client's upload, with the weight that the topology assigns to it at this site."""

    client: str  # the client's name
    weight: float  # the client's number of images, 1, or the weight of an edge of the graph
    tree: Tree  # the content, which matches `Algorithm.upload_schema`


class Averaging(Protocol):
    """A running mean; medians, trimmed means and noised means also satisfy this protocol."""

    def add(self, state: State, weight: float) -> None:
        """Include a model with a weight."""

    def result(self) -> State:
        """Return the mean of the models added so far.

        Raise TooFewUploadsError if they are too few for this kind of mean.
        """


class Algorithm(Settings, ABC):
    """Frozen hyper-parameters and pure functions on Trees: sites, messages, uploads, memories.

    A site is a place where uploads are merged: the server, or each peer of a graph. In a round, a
    site sends `broadcast` to each of its clients, each returns the upload of `client_update`, and
    `merge` makes the site's next state. Nothing else is stored: an algorithm never changes a Tree
    that it receives, nor itself. Fields of a subclass are its hyper-parameters, keys under
    [algorithm].
    """

    # True: topologies without a server are refused.
    needs_server: ClassVar[bool] = False
    # True: clients end with personal models, see `personal`.
    personalises: ClassVar[bool] = False
    # True: a server averages all uploads of a round into one model.
    averages_all: ClassVar[bool] = True
    # True: the method must make exactly two views of each image, of the same size and augmentation.
    needs_pairs: ClassVar[bool] = False

    weights: Literal["size", "uniform"] = "size"  # how a server weighs its clients

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Reset `needs_only_means` if it was defined for a `merge` that the class overrides."""
        super().__init_subclass__(**arguments)
        order = cls.__mro__
        merge_from = order.index(_defining_class(cls, "merge"))
        means_from = order.index(_defining_class(cls, "needs_only_means"))
        if means_from > merge_from:
            cls.needs_only_means = Algorithm.needs_only_means  # type: ignore[method-assign]

    @property
    def measures_clients(self) -> bool:
        """True if clients' personal models are measured and exported, not only those of sites."""
        return self.personalises

    @property
    def requires(self) -> frozenset[str]:
        """Parts that the method must provide."""
        return frozenset()

    @property
    def needs_public(self) -> bool:
        """True if clients and `init` need public images."""
        return False

    @property
    def needs_only_means(self) -> bool:
        """True if `merge` reads uploads only through the means that it starts.

        Noise and secure aggregation then can hide the upload of each client. False is always safe:
        it is the value of a class that overrides `merge` without defining this property itself.
        """
        return False

    @property
    def warning(self) -> str | None:
        """Return a sentence about data that leaves the clients in clear, or None.

        It is printed whenever a run starts or resumes, also with `--quiet`, and is in the rounds
        log and in `results.json`.
        """
        return None

    @abstractmethod
    def upload_schema(self, method: Method) -> Mapping[str, Spec]:
        """Return the schema of an upload, key by key.

        The guard drops uploads that differ from it, and invalid rows of `Features` one by one.
        """

    @abstractmethod
    def init(self, client: Client) -> Tree:
        """Return a site's first state.

        `client` has no images: it holds the newly built method and, if `needs_public`, public
        images.
        """

    def init_site(self, site: Tree, clients: Mapping[str, int]) -> Tree:
        """Return a site's first state, given its clients and their numbers among all clients.

        The site may later receive requests from clients that are not among them.
        """
        return site

    @abstractmethod
    def broadcast(self, site: Tree, client_id: str) -> Tree:
        """Return the message that a site sends to a client."""

    @abstractmethod
    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        """Run one client's round; return its upload and its memory for the next round."""

    def statistics_reference(self, site: Tree) -> Tree:
        """Return models that a site holds but does not send, under the keys of uploads.

        The guard compares the running statistics of uploads with these.
        """
        return {}

    def received_keys(self, upload: Tree) -> Mapping[str, str]:
        """Map keys of an upload's models to the keys under which the client received them.

        The guard measures an upload from the models that its client received. Called only for
        uploads that match `upload_schema`.
        """
        return {}

    @abstractmethod
    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        """Return the site's next state.

        Uploads arrive one by one in the clients' order; `mean()` starts a mean.
        """

    def export(self, site: Tree) -> dict[str, State]:
        """Return the models to evaluate, by name; empty if no site has a whole model.

        The default is the model of the site, `site["model"]`.
        """
        return {"global": model(site, "model")}

    def personal(self, message: Tree, memory: Tree) -> State | None:
        """Return the model that a client uses itself, or None if it has no personal model.

        `message` is the message that its site would send now. Pure, and no part of training.
        Called only if the algorithm `personalises`.
        """
        return None

    def shared_rows(self, site: Tree, client: Client) -> SharedRows | None:
        """Return the features of a client that a site holds, to measure what they reveal.

        `client` has the client's name, its images, and the round in which the rows were made. None
        if there are none, or if it is unknown which images they were made of.
        """
        return None

    def draw(self, n: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        """Return random numbers for the objective in one step of n images.

        They arrive in `batch.draws`, together with the method's.
        """
        return {}

    def constants(self, client: Client, message: Tree) -> Constants:
        """Return tensors that the objective needs in addition to the batch, once per round.

        Examples are reference weights and features of other clients.
        """
        return {}

    def objective(self, method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        """Return the local loss.

        This is a bound method of a frozen value, never a closure: a step compiled once serves
        every client and round, and values that change between them are passed in `constants`.
        """
        return method.loss(out, constants)

    def chance_loss(self, method: Method, batch: int) -> float | None:
        """Return the local loss of random guessing for a batch of this many images.

        None if the method has no such level, or if the objective has terms of the algorithm.
        """
        if type(self).objective is not Algorithm.objective:
            return None
        return method.chance_loss(batch)


def _defining_class(cls: type, name: str) -> type:
    """Return the class in the method resolution order from which `cls` gets an attribute."""
    return next(base for base in cls.__mro__ if name in vars(base))


ALGORITHMS: Registry[Algorithm] = Registry(
    "algorithm", "fedssl.algorithms", modules=["fedssl.algorithms"]
)
"""The algorithms by name, for `[algorithm]`: `@ALGORITHMS.register("mine")` adds one."""
