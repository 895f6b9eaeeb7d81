"""What CCL sends about: main and momentum models, each averaged with its own kind, and features of mixed images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedssl.algorithm import Averaging, Features, Spec, Upload
from fedssl.algorithms.averaged import Averaged
from fedssl.algorithms.instahide import mixtures, warning_of
from fedssl.client import Client
from fedssl.layout import Layout
from fedssl.method import Method
from fedssl.seeds import derive
from fedssl.train import Trainer
from fedssl.tree import Tree


class Sharing(Averaged, ABC):
    """Features are made after local training, joined at the site with a column that says whose each is, and sent to all
    in the next round; a client leaves out its own."""

    features: int = Field(4096, gt=0)  # features each client shares, one for each of its images; at most
    mix: int = Field(4, gt=0, le=10)  # images in a mixture, InstaHide's k; 1: nothing is mixed
    flips: bool = False  # a random sign for each pixel of a mixture

    @property
    @abstractmethod
    def shares(self) -> bool:
        """Whether features travel; else models alone do."""

    @property
    def requires(self) -> frozenset[str]:
        return frozenset({"target", "queue"})

    @property
    def warning(self) -> str | None:
        return warning_of(self.mix) if self.shares else None

    def kept(self, method: Method) -> Layout:
        return method.state.layout.pick(method.private)

    def wire(self, method: Method) -> Mapping[str, Spec]:
        models = {"model": self.shared(method), "target": method.state.layout.pick(("target",))}
        features = Features(local_keys(method).shape[1], self.features)
        return {**models, "features": features} if self.shares else models

    def init(self, home: Client) -> Tree:
        models = {**super().init(home), "target": home.method.state.pick(("target",))}
        return {**models, **joined({"nobody": local_keys(home.method)[:0].clone()})} if self.shares else models

    def upload(self, client: Client, message: Tree) -> Tree:
        models = {**super().upload(client, message), "target": client.method.state.pick(("target",))}
        if not self.shares:
            return models
        return {**models, "features": projected(client.trainer, mixtures(client, self.mix, self.features, self.flips))}

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        aside: dict[str, Tensor] = {}
        models = {key: site[key] for key in ("model", "target")}
        merged = super().merge(models, setting_aside(uploads, self.features, aside), mean)
        return {**merged, **joined(aside)} if self.shares else merged


def local_keys(method: Method) -> Tensor:
    """The queue (K, d), as it is now."""
    return method.get_buffer("queue.keys")


def projected(trainer: Trainer, inputs: Iterable[Tensor]) -> Tensor:
    """Unit projections (n, d), by the momentum copy in eval mode, of inputs (m, C, H, W) that come some at a time."""
    with trainer.at_rest() as method:
        return torch.cat([F.normalize(method.encode_target(some), dim=-1) for some in inputs])


def setting_aside(uploads: Iterable[Upload], most: int, aside: MutableMapping[str, Tensor]) -> Iterator[Upload]:
    """Pass uploads on, and put the features of each aside, at most `most`."""
    for upload in uploads:
        if isinstance(features := upload.tree.get("features"), Tensor):
            aside[upload.client] = features[:most]
        yield upload
        del upload  # or it would live on until the next one has come


def joined(shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Features (m, d) by client as one tensor (n, d), and whose each of them is (n,)."""
    owners = [torch.full((len(rows),), owner(c), dtype=torch.int64, device=rows.device) for c, rows in shared.items()]
    return {"features": torch.cat(list(shared.values())), "owners": torch.cat(owners)}


def others(message: Tree, client_id: str, most: int, generator: torch.Generator) -> tuple[Tensor, int]:
    """Of what was joined, features of other clients, at most `most` and drawn at random, (r, d); and how many they are.

    r is a power of two, or `most`, so that few shapes come up; rows beyond the features are zeros.
    """
    features, owners = message["features"], message["owners"]
    assert isinstance(features, Tensor)
    assert isinstance(owners, Tensor)
    foreign = (owners != owner(client_id)).nonzero().flatten()
    order = torch.randperm(len(foreign), generator=generator)[:most]
    chosen = F.normalize(features[foreign[order.to(foreign.device)]], dim=-1)  # whatever was sent
    room = min(1 << (max(len(chosen), 1) - 1).bit_length(), most)
    return F.pad(chosen, (0, 0, 0, room - len(chosen))), len(chosen)


def owner(client_id: str) -> int:
    """A client's number, the same on every machine."""
    return derive("owner", client_id)
