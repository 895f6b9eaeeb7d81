"""What features that clients share reveal: which image a row was made of, and how it looks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.algorithm import Features, SharedRows
from fedssl.analysis.audit.decoder import reduced, train_decoder
from fedssl.analysis.audit.image_similarity import psnr
from fedssl.analysis.audit.material import Material
from fedssl.analysis.audit.result import (
    AttackResult,
    Strip,
    closer_than_guesses,
    not_measured,
)
from fedssl.core.console import meter
from fedssl.core.devices.precision import float32
from fedssl.core.state.state import State
from fedssl.experiment.federation_setup import build_method
from fedssl.method import Method
from fedssl.training.client import Client

ATTACK = "shared features"
MAX_CANDIDATES = 2000
MIN_PAIRS = 100  # images to train a decoder on
CHUNK = 128  # images projected at a time
SHOWN = 8


class Projected(NamedTuple):
    """The attacker's own projections of its candidates, and of its other images."""

    how: str
    candidates: Tensor  # (n, k) of unit length
    others: Tensor | None  # (m, k)


def invert_features(material: Material) -> Iterator[AttackResult]:
    """Yield the results of linkage and of decoding."""
    schema = material.run.experiment.algorithm.upload_schema(
        material.victim.federation.trainer.method
    )
    if not any(isinstance(spec, Features) for spec in schema.values()):
        reason = "this algorithm shares no features with these settings"
        yield not_measured(ATTACK, "", reason)
        return
    client = _client_with_rows(material)
    if client is None:
        reason = "the checkpoint has no shared rows whose images are known"
        yield not_measured(ATTACK, "", reason)
        return
    name, rows = client
    pixels = material.client_images(name).pixels
    with meter("inverting shared features", 3, material.notify) as advance:
        attack = _FeatureAttack(material, name, rows, pixels)
        advance(1)
        yield attack.link()
        advance(1)
        yield attack.decode()
        advance(1)


def _client_with_rows(material: Material) -> tuple[str, SharedRows] | None:
    """Return a client whose rows are in the checkpoint: the one under attack, or the first."""
    names = [material.client, *material.owners]
    for name in names:
        rows = _rows_of(material, name)
        if rows is not None:
            return name, rows
    return None


def _rows_of(material: Material, name: str) -> SharedRows | None:
    """Return the rows of one client in the checkpoint."""
    experiment = material.run.experiment
    federation = material.victim.federation
    if not material.snapshot.rounds:
        return None
    client = Client(
        id=name,
        pixels=federation.shards[name].on(federation.device),
        labels=None,
        memory={},
        trainer=federation.trainer,
        seed=experiment.seed,
        round=material.snapshot.rounds - 1,
    )
    for site in material.snapshot.sites.values():
        rows = experiment.algorithm.shared_rows(site, client)
        if rows is not None:
            return rows
    return None


class _FeatureAttack:
    """Attacks on the rows of one client with the model that all clients receive."""

    def __init__(self, material: Material, client: str, rows: SharedRows, pixels: Tensor) -> None:
        self.material = material
        self.client = client
        stream = material.stream("rows")
        chosen = torch.randperm(len(rows.features), generator=stream)[: material.settings.members]
        self.rows = F.normalize(rows.features.cpu()[chosen].float(), dim=1)
        # Candidates are renumbered: images of the chosen rows come first.
        images = rows.images.cpu()[chosen]
        used, self.images = images.unique(return_inverse=True)
        unused = torch.arange(len(pixels))
        unused = unused[~torch.isin(unused, used)]
        kept = torch.cat([used, unused])[: max(MAX_CANDIDATES, len(used))]
        self.candidates = pixels[kept]
        self.others = None
        if material.unseen is not None:
            self.others = material.others(5 * MAX_CANDIDATES, "decoder", client)
        self.projected = self._best_projection()

    @float32()
    def _best_projection(self) -> Projected:
        """Return the projections whose nearest neighbours are most similar to the rows.

        The attacker does not know which network made the rows, and in which mode.
        """
        method = _received_model(self.material, self.client)
        best: tuple[float, Projected] | None = None
        for how in ("projector", "projector, training mode", "target network"):
            if how == "target network" and "target" not in method.provides:
                continue
            candidates = _project(method, self.candidates, how)
            if candidates.shape[1] != self.rows.shape[1]:
                continue
            others = None if self.others is None else _project(method, self.others, how)
            similarity = float((self.rows @ candidates.T).amax(1).mean())
            if best is None or similarity > best[0]:
                best = (similarity, Projected(how, candidates, others))
        assert best is not None, "shared rows have the width of no projection"
        return best[1]

    def link(self) -> AttackResult:
        """Link each row to the nearest of the client's images."""
        nearest = (self.rows @ self.projected.candidates.T).argmax(1)
        right = (self.images == nearest[:, None]).any(1)
        accuracy = float(right.float().mean())
        chance = self.images.shape[1] / len(self.candidates)
        case = "which image a row was made of"
        meaning = link_meaning(int(right.sum()), len(right), chance)
        details = {
            "client": self.client,
            "rows": len(self.rows),
            "candidates": len(self.candidates),
            "images_in_a_row": self.images.shape[1],
            "projection": self.projected.how,
            "top_1": round(accuracy, 4),
            "top_1_of_guessing": round(chance, 6),
        }
        return AttackResult(
            ATTACK, case, f"{accuracy:.1%} top-1", f"{chance:.1%}", meaning, details
        )

    def decode(self) -> AttackResult:
        """Decode rows with a decoder that was trained on other images."""
        case = "how an image looks"
        if self.others is None or self.projected.others is None or len(self.others) < MIN_PAIRS:
            reason = f"a decoder needs {MIN_PAIRS} images that no client trained on"
            return not_measured(ATTACK, case, reason)
        images = reduced(self.others)
        stream = self.material.stream("decoder")
        decoder = train_decoder(self.projected.others, images, stream)
        with torch.no_grad():
            decoded = decoder(self.rows)
        originals = reduced(self.candidates)
        random = images[torch.randint(len(images), (len(self.rows),), generator=stream)]
        mean = images.mean(0, keepdim=True).expand_as(decoded)
        by_decoder = self._psnr(originals, decoded)
        by_random = self._psnr(originals, random)
        by_mean = self._psnr(originals, mean)
        wins = int((by_decoder > torch.maximum(by_random, by_mean)).sum())
        details = {
            "rows": len(self.rows),
            "decoder_images": len(images),
            "pixels_a_side": max(images.shape[2:]),
            "psnr": round(float(by_decoder.mean()), 2),
            "psnr_of_random_images": round(float(by_random.mean()), 2),
            "psnr_of_mean_image": round(float(by_mean.mean()), 2),
            "closer_than_guessing": wins,
        }
        shown = self.images[:SHOWN, 0]
        strip = Strip(
            {"original": originals[shown], "decoded": decoded[:SHOWN], "mean image": mean[:SHOWN]},
        )
        guess = max(details["psnr_of_random_images"], details["psnr_of_mean_image"])
        return AttackResult(
            ATTACK, case, f"{details['psnr']:.1f} dB", f"{guess:.1f} dB",
            closer_than_guesses("decoded rows", wins, len(self.rows), "rows"), details, strip,
        )  # fmt: skip

    def _psnr(self, originals: Tensor, images: Tensor) -> Tensor:
        """Return the PSNR (n,) of one image for each row; of a mixture, to its nearest image."""
        by_image = [psnr(originals[column], images) for column in self.images.unbind(1)]
        return torch.stack(by_image).amax(0)


def link_meaning(right: int, count: int, chance: float) -> str:
    """Return one sentence on the rows that the attack links to their image."""
    linked = f"{right} of {count} rows are linked to their image, guessing links {chance:.1%}"
    if right > chance * count:
        return (
            f"{linked}: someone who has an image can check whether this client probably has it too"
        )
    return f"{linked}: no better than guessing; other attacks may be"


def _received_model(material: Material, client: str) -> Method:
    """Return the method with the weights that a client would receive now."""
    run = material.run
    method = build_method(run.experiment, material.data.train.image_shape, run.device)
    site = next(iter(material.snapshot.sites.values()))
    message = run.experiment.algorithm.broadcast(material.snapshot.sites.get(client, site), client)
    for value in message.values():
        if isinstance(value, State):
            method.state.load(value.to(run.device))
    return method


@torch.no_grad()
def _project(method: Method, pixels: Tensor, how: str) -> Tensor:
    """Return unit projections (n, k) of uint8 images on the CPU."""
    method.train(how.endswith("training mode"))
    device = method.state.floats.device
    parts = []
    for images in pixels.split(CHUNK):
        if method.training and len(images) < 2:
            images = images.repeat(2, 1, 1, 1)
        inputs = method.clean(images.to(device))
        if how == "target network":
            z = method.encode_target(inputs)
        else:
            z = method.encode(inputs, tracked=False).z
        parts.append(F.normalize(z, dim=1).cpu())
    return torch.cat(parts)[: len(pixels)]
