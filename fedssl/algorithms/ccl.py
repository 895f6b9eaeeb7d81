"""CCL: clients share features of mixed images, so that each learns from images it does not have.

Wu et al., "Decentralized unsupervised learning of visual representations", IJCAI 2022, for MoCo.
Main and momentum models are averaged, each with its own kind (Sect. 3). Features of other clients
are negatives in addition to the local queue (feature fusion, Eq. 3), and each query is drawn to its
nearest among both (neighbourhood matching, Eq. 7–11).
Departures: the paper gives no settings; these are ours. At most `remote` features enter a client's
loss, drawn anew each round: those of a hundred clients would be 400,000. With fusion, Eq. 3 takes
the place of the method's own loss, temperature included. Both views are queries, summed over, as in
MoCo here. Features are made after local training, and are sent to clients in the next round only.
As long as a client has no features of others, as in round 1, its negatives are local, also with
`remote_only`. Mixed images are not flipped by default: features of flipped ones carry no
information about their class, and are close together (`results/ccl/features.json`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedssl.algorithm import ALGORITHMS, Algorithm, Averaging, Features, SharedRows, Spec, Upload
from fedssl.algorithms._averaging import (
    average,
    keep,
    load_model,
    online_layout,
    online_model,
    stored_models,
)
from fedssl.algorithms._ccl_losses import candidates_among, fused_contrast, neighbourhood_matching
from fedssl.algorithms._instahide import mixed_images, mixtures, warning_of
from fedssl.algorithms._shared_rows import (
    features_of,
    features_of_others,
    join_features,
    local_keys,
    no_features,
    projected,
)
from fedssl.core.errors import ConfigError
from fedssl.core.state.tree import Tree, Value, model, tensor
from fedssl.method import Batch, Constants, Method, Output
from fedssl.training.client import Client
from fedssl.training.trainer import Draw

TARGET = ("target",)


@ALGORITHMS.register("ccl")
class CCL(Algorithm):
    """Clients share features of mixed images, so that each learns from images it does not have."""

    # features each client shares, one for each of its images; at most
    features: int = Field(4096, gt=0)
    mix: int = Field(4, gt=0, le=10)  # images in a mixture, InstaHide's k; 1: nothing is mixed
    flips: bool = False  # a random sign for each pixel of a mixture
    fusion: bool = True  # features of other clients are negatives too
    remote_only: bool = False  # with fusion: they are the only negatives (Eq. 5)
    remote: int = Field(16384, gt=0)  # features of others in a client's loss, at most
    tau: float = Field(0.1, gt=0)  # temperature of Eq. 3
    lam: float = Field(0.05, ge=0)  # λ, the weight of neighbourhood matching; 0: none
    tau_nm: float = Field(0.05, gt=0)  # temperature of Eq. 10
    neighbours: int = Field(10, gt=0)  # N: the nearest features, to which a query is matched
    # K: features among which these are found, drawn in every step; at most
    candidates: int = Field(4096, gt=0)

    @property
    def shares(self) -> bool:
        """True if features are uploaded in addition to models."""
        return self.fusion or self.lam > 0

    @property
    def requires(self) -> frozenset[str]:
        return frozenset({"target", "queue"})

    @property
    def warning(self) -> str | None:
        if not self.shares:
            return None
        return warning_of(self.mix)

    @property
    def needs_only_means(self) -> bool:
        return not self.shares

    def upload_schema(self, method: Method) -> Mapping[str, Spec]:
        schema: dict[str, Spec] = {
            "model": online_layout(method),
            "target": method.state.layout.pick(TARGET),
        }
        if self.shares:
            schema["features"] = Features(local_keys(method).shape[1], self.features)
        return schema

    def init(self, client: Client) -> Tree:
        method = client.method
        if self.lam and self.neighbours >= min(len(local_keys(method)), self.candidates):
            raise ConfigError(
                f"algorithm.neighbours = {self.neighbours} is too large: it must be below "
                f"method.queue = {len(local_keys(method))} and algorithm.candidates = "
                f"{self.candidates}"
            )
        site: dict[str, Value] = {
            "model": online_model(method),
            "target": method.state.pick(TARGET),
        }
        if self.shares:
            site.update(no_features(method))
        return site

    def shared_rows(self, site: Tree, client: Client) -> SharedRows | None:
        if not self.shares:
            return None
        features = features_of(site, client.id)
        mixed = mixed_images(client, self.mix, self.features)
        # An invalid row that was dropped moves all rows after it.
        if not len(features) or len(features) != len(mixed):
            return None
        return SharedRows(features, mixed)

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return site

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        kept = stored_models(client.memory, "kept")
        load_model(client, model(message, "model"), model(message, "target"), *kept)
        constants = self.constants(client, message)
        draw: Draw = self.draw
        if self.lam:
            draw = candidates_among(constants["known"], self.candidates)
        client.train(self.objective, constants, draw)
        parts = set(client.method.persistent_parts).intersection(client.method.private)
        return self._upload(client), keep(client, parts)

    def _upload(self, client: Client) -> Tree:
        method = client.method
        upload: dict[str, Value] = {
            "model": online_model(method),
            "target": method.state.pick(TARGET),
        }
        if self.shares:
            mixed = mixtures(client, self.mix, self.features, flips=self.flips)
            upload["features"] = projected(client.trainer, mixed)
        return upload

    def constants(self, client: Client, message: Tree) -> Constants:
        """Return features of other clients, and masks over local keys and these features.

        `remote` (r, d) are the features. With n local keys, `known` (n + r,) marks rows that hold a
        feature, and `negative` (n + r,) those that are negatives.
        """
        if not self.shares:
            return {}
        stream = client.generator("remote")
        remote, count = features_of_others(message, client.id, self.remote, generator=stream)
        client.notes["remote"] = count
        local = len(local_keys(client.method))
        place = torch.arange(local + len(remote), device=remote.device)
        known = place < local + count
        negative = known
        if self.remote_only and count:
            negative = known & (place >= local)  # Eq. 5
        return {"remote": remote, "known": known, "negative": negative}

    def objective(self, method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        if not self.shares:
            return method.loss(out, constants)
        queries = F.normalize(out.z, dim=-1)
        features = torch.cat([local_keys(method), constants["remote"]])
        if self.fusion:
            assert out.keys is not None
            keys = out.keys.flip(0)
            loss = fused_contrast(queries, keys, features, constants["negative"], self.tau)
        else:
            loss = method.loss(out, constants)
        if self.lam:
            drawn = batch.draws["candidates"]
            candidates = features[drawn]
            known = constants["known"][drawn]
            matching = neighbourhood_matching(
                queries, candidates, known, neighbours=self.neighbours, tau=self.tau_nm
            )
            loss = loss + self.lam * matching
        return loss  # Eq. 12

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        """Average the main models and the momentum models, and join the features."""
        models = {"model": site["model"], "target": site["target"]}
        if not self.shares:
            return average(models, uploads, mean)
        features: dict[str, Tensor] = {}  # by client

        def collect(upload: Upload) -> Upload:
            features[upload.client] = tensor(upload.tree, "features")[: self.features]
            return upload

        averaged = average(models, map(collect, uploads), mean)
        return {**averaged, **join_features(features)}
