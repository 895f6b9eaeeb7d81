"""What all attacks need: the run, its newest checkpoint, its images and images of no client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedssl.analysis.audit.membership import same_classes
from fedssl.analysis.audit.victim import Victim
from fedssl.analysis.local import load_checkpoint
from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError
from fedssl.core.seeds import generator
from fedssl.core.settings import Settings
from fedssl.data import Dataset, Images
from fedssl.engine.checkpoints.store import Snapshot
from fedssl.experiment.client_data import public_rows
from fedssl.runs.resume_checks import FLOWER
from fedssl.runs.run import Run

MIN_UNSEEN = 50  # images that no client has, for them to be preferred to test images


class AuditSettings(Settings):
    """Settings of an audit."""

    images: int = Field(8, ge=2, le=1024)  # images that inversion attacks try to reconstruct
    # images in an attacked step; no client trains on a single image
    batches: tuple[Annotated[int, Field(ge=2, le=1024)], ...] = (2, 4, 16)
    whole_round: bool = True  # attack the update of a whole round too
    iterations: int = Field(300, gt=0, le=1_000_000)  # of gradient matching
    members: int = Field(1000, ge=20, le=10_000)  # training images in membership inference
    client: str | None = None  # the client under attack; None: the first with enough images
    clip: float | None = Field(None, gt=0)  # L2 norm that attacked updates are clipped to; None: no
    noise: float = Field(0.0, ge=0)  # added to attacked updates, relative to `clip` or their norm
    seed: int = 0

    def steps_of(self, size: int) -> int:
        """Return the number of attacked steps on `size` images each."""
        return max(1, self.images // size)


@dataclass(frozen=True)
class Material:
    """The run under audit."""

    run: Run
    settings: AuditSettings
    snapshot: Snapshot
    data: Dataset
    seen: Dataset  # the images as clients see them
    owners: Mapping[str, Tensor]  # the images of each client
    notify: Notify

    @classmethod
    def read(cls, run: Run, settings: AuditSettings, notify: Notify) -> Material:
        """Read the checkpoint and the images; raise ConfigError where there are none."""
        if (run.dir / FLOWER).exists():
            raise ConfigError(
                f"{run.dir} is the directory of a Flower server, which has no images of clients: "
                "an audit needs them. Audit a local run of the same experiment instead"
            )
        snapshot = load_checkpoint(run, notify)
        data = run.data(notify)
        seen, owners = run.partition_data(data, notify)
        present = {client: index for client, index in owners.items() if len(index)}
        return cls(run, settings, snapshot, data, seen, present, notify)

    def stream(self, *purpose: str | int) -> torch.Generator:
        """Return the random stream of one part of the audit."""
        return generator(self.settings.seed, "audit", *purpose)

    @cached_property
    def unseen(self) -> Images | None:
        """Images that no client trained on: training images without a client, or test images."""
        if len(self._unowned) >= MIN_UNSEEN:
            return self.data.train.select(self._unowned)
        return self.data.test if self.data.test is not None and len(self.data.test) else None

    @cached_property
    def _unowned(self) -> Tensor:
        """Indices of training images that no client has and that are not public."""
        rows = torch.arange(len(self.data.train))
        used = [*self.owners.values(), public_rows(self.run.experiment, self.data)]
        return rows[~torch.isin(rows, torch.cat(used))]

    @property
    def unseen_name(self) -> str:
        """What the images of `unseen` are."""
        if len(self._unowned) >= MIN_UNSEEN:
            return "training images of no client"
        return "test images"

    @cached_property
    def client(self) -> str:
        """The client under attack."""
        chosen = self.settings.client
        if chosen is not None:
            if chosen not in self.owners:
                names = ", ".join(list(self.owners)[:20])
                raise ConfigError(f'there is no client "{chosen}" with images; there are: {names}')
            return chosen
        largest = max(map(len, self.owners.values()))
        enough = min(16, largest)
        return next(name for name, index in self.owners.items() if len(index) >= enough)

    @cached_property
    def victim(self) -> Victim:
        """The client under attack, ready to train."""
        return Victim.of(
            self.run,
            self.snapshot,
            seen=self.seen,
            owners=self.owners,
            public=self.run.public(self.data, self.notify),
            client=self.client,
        )

    def client_images(self, client: str) -> Images:
        """Return the images of a client."""
        return self.seen.train.select(self.owners[client])

    def others(self, count: int, purpose: str, client: str) -> Tensor:
        """Return images never trained on, uint8 (m, C, H, W), in random order.

        Where labels exist, they have the classes of the client: an attack must recover more than
        the class. The first images have them in the client's proportions, further ones do not. Less
        than `count` are returned if there are no more images of these classes.
        """
        unseen = self.unseen
        if unseen is None:
            raise ConfigError("there are no images that no client trained on")
        stream = self.stream("others", purpose)
        index = torch.randperm(len(unseen), generator=stream)
        own = self.client_images(client)
        if own.labelled and unseen.labelled:
            _, matched = same_classes(own.labels, unseen.labels, stream)
            same = index[torch.isin(unseen.labels[index], own.labels)]
            further = same[~torch.isin(same, matched)]
            index = torch.cat([matched, further]) if len(matched) else index
        return unseen.pixel_rows[index[:count]]

    def describe(self) -> dict[str, Any]:
        """Return plain values about what was audited."""
        return {
            "rounds": self.snapshot.rounds,
            "client": self.client,
            "client_images": len(self.owners[self.client]),
            "clients": len(self.owners),
            "unseen": self.unseen_name if self.unseen is not None else None,
        }
