"""FedCA: clients contrast their images with shared projections, and align public images.

Zhang et al., "Federated unsupervised representation learning", 2020, Algorithm 1 (its lines are in
the margin; S: server, C: client). In place of the method's own loss: a view among the batch's
others and a dictionary that clients share (Eq. 4-8), + β × the distance of public images from their
features under an alignment model (Eq. 11-14).
Departures: t = 0.5, since the paper gives none. It leaves open how m clients make a dictionary of
K: each sends rows drawn anew each round, K of them in the first and then K // m of the round
before; a site keeps K // m of each. The row that a client made of the very image it trains on is no
negative. Rows are of clean images, in eval mode or, with `dictionary_mode = "train"`, in training
mode. The alignment model is trained with Eq. 4, 7 and 8 on the public images for as many rounds and
epochs as a client; its features of them, clean, are computed once. A step draws 128 of them, with
replacement; their pass leaves running statistics unchanged; Eq. 11-12 are means over images, not
sums. No server is needed: a peer's dictionary is its neighbours' and its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedssl.algorithm import (
    ALGORITHMS,
    Algorithm,
    Averaging,
    Features,
    SharedRows,
    Spec,
    TensorSpec,
    Upload,
)
from fedssl.algorithms._averaging import (
    average,
    keep,
    load_model,
    online_layout,
    online_model,
    stored_models,
)
from fedssl.algorithms._dictionary import (
    EMPTY,
    DictionaryBuilder,
    choose_rows,
    dictionary_tensors,
    empty_dictionary,
    projection_width,
    rows_of,
    update_ensemble,
)
from fedssl.core.state.tree import Tree, Value, model, tensor
from fedssl.method import Batch, Constants, Method, Output
from fedssl.training.client import Client

ALIGNMENT_PROGRESS = "training the alignment model, before the first round and the first checkpoint"


@ALGORITHMS.register("fedca")
class FedCA(Algorithm):
    """Clients contrast their images with shared projections, and align public images."""

    needs_pairs: ClassVar[bool] = True
    added_later: ClassVar = ("dictionary_mode",)

    # projections that all clients share, the paper's K; 0: none
    dictionary: int = Field(1024, ge=0, le=1_000_000)
    alpha: float = Field(0.5, ge=0, lt=1)  # how much of a shared projection is from earlier rounds
    # mode in which shared projections are computed: eval, with running statistics of BatchNorm, or
    # train, with those of batches of `train.batch` images
    dictionary_mode: Literal["eval", "train"] = "eval"
    temperature: float = Field(0.5, gt=0)  # of the softmax over batch and dictionary, the paper's t
    # weight of the alignment; 0: none, and no public images are needed
    beta: float = Field(0.01, ge=0)
    aligned: int = Field(128, ge=2, le=10_000)  # public images in a step

    @property
    def requires(self) -> frozenset[str]:
        return frozenset({"projector"})

    @property
    def needs_public(self) -> bool:
        return self.beta > 0

    @property
    def warning(self) -> str | None:
        if not self.dictionary:
            return None
        return (
            "projections of private images are shared with all clients, in clear: "
            "dictionary = 0 shares none"
        )

    @property
    def needs_only_means(self) -> bool:
        return not self.dictionary

    def upload_schema(self, method: Method) -> Mapping[str, Spec]:
        schema: dict[str, Spec] = {"model": online_layout(method)}
        if self.dictionary:
            width = projection_width(method)
            schema["features"] = Features(width, self.dictionary, columns=("index",))
            schema["index"] = TensorSpec((None,), torch.int64)
        return schema

    def init(self, client: Client) -> Tree:
        site: dict[str, Value] = {"model": online_model(client.method)}  # line S1
        if self.dictionary:
            site.update(empty_dictionary(self.dictionary, client.method))
        if self.beta:
            site.update(self._align(client))  # line S2
        return site

    def _align(self, client: Client) -> Tree:
        """Train the alignment model; return its features and projections of the public images."""
        assert client.public is not None
        first = client.method.state.clone()
        with client.meter(ALIGNMENT_PROGRESS, client.rounds) as advance:
            for r in range(client.rounds):
                lr = client.trainer.settings.lr_at(r, client.rounds)
                progress = r / client.rounds
                trainee = replace(client, pixels=client.public, round=r, lr=lr, progress=progress)
                trainee.train(self.contrast, {})
                advance(1)
        h = client.trainer.embed(client.public, "h")
        z = client.trainer.embed(client.public, "z")
        client.method.state.load(first)
        return {"h_align": h, "z_align": z}

    def shared_rows(self, site: Tree, client: Client) -> SharedRows | None:
        return rows_of(site, client.id) if self.dictionary else None

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return site

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        received = model(message, "model")
        load_model(client, received, *stored_models(client.memory, "kept"))
        client.train(self.objective, self.constants(client, message), self.draw)  # lines C1–C4
        upload: dict[str, Value] = {"model": online_model(client.method)}
        memory = dict(keep(client, client.method.persistent_parts))
        if self.dictionary:
            ensemble = update_ensemble(client, self.alpha, self.dictionary_mode)  # line C5
            upload.update(choose_rows(client, ensemble, message))
            memory["ensemble"] = ensemble
        self._note_alignment(client, message)
        return upload, memory  # line C6

    def _note_alignment(self, client: Client, message: Tree) -> None:
        """Log the alignment term relative to the contrastive loss, for one batch."""
        if not self.beta:
            return
        constants = self.constants(client, message)
        contrastive, total = client.measure(
            constants, self.contrast, self.objective, draw=self.draw
        )
        client.notes["alignment_ratio"] = (total - contrastive) / max(contrastive, 1e-12)

    def constants(self, client: Client, message: Tree) -> Constants:
        """Return the dictionary, and the public images with their aligned features."""
        tensors: dict[str, Tensor] = {}
        if self.dictionary:
            tensors.update(dictionary_tensors(message, client.id, self.dictionary))
        if self.beta:
            assert client.public is not None
            tensors["h_align"] = tensor(message, "h_align")
            tensors["z_align"] = tensor(message, "z_align")
            tensors["public"] = client.public
        return tensors

    def draw(self, n: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        if not self.beta:
            return {}
        return {"public": torch.rand(self.aligned, generator=generator, device=generator.device)}

    def contrast(self, method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        """Return the loss without the alignment."""
        dictionary = constants.get("dictionary")
        return contrast(
            out.z,
            batch.index,
            dictionary,
            entry=constants.get("entry"),
            temperature=self.temperature,
        )

    def objective(self, method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
        loss = self.contrast(method, batch, out, constants)
        if not self.beta:
            return loss
        chosen = (batch.draws["public"] * len(constants["public"])).long()
        public = method.encode(method.clean(constants["public"][chosen]), tracked=False)
        h_distance = squared_distance(public.h, constants["h_align"][chosen])  # Eq. 11
        z_distance = squared_distance(public.z, constants["z_align"][chosen])  # Eq. 12
        return loss + self.beta * (h_distance + z_distance)  # Eq. 13-14

    def merge(self, site: Tree, uploads: Iterable[Upload], mean: Callable[[], Averaging]) -> Tree:
        models = {"model": site["model"]}
        if not self.dictionary:
            return {**site, **average(models, uploads, mean)}
        builder = DictionaryBuilder(self.dictionary)
        averaged = average(models, map(builder.collect, uploads), mean)  # line S8
        return {**site, **averaged, **builder.result()}  # line S9


def contrast(
    z: Tensor,
    index: Tensor,
    dictionary: Tensor | None,
    entry: Tensor | None,
    temperature: float,
) -> Tensor:
    """Return the loss of projections z (2, B, k) among the batch and a dictionary, 0-d.

    `index` (B,) are the numbers of the images; see `dictionary_tensors` for the dictionary.
    """
    first = F.normalize(z[0], dim=-1)
    second = F.normalize(z[1], dim=-1)
    logits = first @ second.T  # Eq. 4
    if dictionary is not None and entry is not None:
        masked = (entry == EMPTY) | (entry == index[:, None])  # (B, K)
        others = (first @ dictionary.T).masked_fill(masked, -torch.inf)
        logits = torch.cat([logits, others], 1)  # Eq. 5-6
    logits = logits / temperature
    return (logits.logsumexp(1) - logits.diagonal()).mean()  # Eq. 7-8


def squared_distance(one: Tensor, other: Tensor) -> Tensor:
    """Return the mean squared distance of rows (n, d), 0-d."""
    return (one - other).square().sum(1).mean()
