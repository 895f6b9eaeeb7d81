"""What must agree before a run directory is gone on with: the experiment, and the images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssl.changes import differences, harmless
from fedssl.data import Dataset
from fedssl.data.progress import Say
from fedssl.errors import ConfigError
from fedssl.experiment import Experiment
from fedssl.store import write_atomic
from fedssl.train import resolve_precision


def agree(experiment: Experiment, folder: Path, device: torch.device, say: Say) -> Experiment:
    """The experiment as it will run in this directory; refused if the one begun there means something else."""
    precision = resolve_precision(experiment.train.precision, device)
    wanted = experiment.with_changes({"train.precision": precision})
    path = folder / "experiment.toml"
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file, not a run directory. Choose another --dir")
    if path.is_file():
        begun = Experiment.from_file(path)
        changed = differences(begun.to_dict(), wanted.to_dict())
        refused = [key for key in changed if not harmless(key)]
        if wanted.rounds < begun.rounds:
            refused.append("rounds")
        if refused:
            lines = "; ".join(f"{key}: {changed[key][0]!r} there, {changed[key][1]!r} asked for" for key in refused[:3])
            lines += f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
            raise ConfigError(f"{folder} holds a run of another experiment ({lines}). Choose another --dir")
        if wanted.rounds > begun.rounds and wanted.train.schedule != "constant":
            say(
                f"{begun.rounds} rounds become {wanted.rounds}: the learning rate follows the longer schedule from here"
            )
    return wanted


def agree_on_images(
    experiment: Experiment, folder: Path, data: Dataset, owners: Mapping[str, Tensor], public: Tensor | None = None
) -> None:
    """Refuse to go on with other images, private or public, or the same ones dealt otherwise, than a run began with; or
    with other first weights or labels, where it has begun with some. images.sha256 has a hash of all that, and one of
    clients' images alone."""
    digest, method = hashlib.sha256(), experiment.method
    if method.init is not None and method.init.is_file():
        digest.update(hashlib.sha256(method.init.read_bytes()).digest())
    if method.method.learns_from_labels and data.train.labelled:
        digest.update(data.train.labels.to(torch.int64).numpy().data)
    if public is not None:
        digest.update(json.dumps(list(public.shape)).encode())
        digest.update(public.numpy().data)
    images = _dealt(data, owners, digest)
    path, found = folder / "images.sha256", digest.hexdigest()
    if path.is_file() and path.read_text("utf-8").split()[:1] != [found]:
        others = "on other images, or on these dealt otherwise"
        others += ", or with other labels" if method.method.learns_from_labels else ""
        others += ", or from other first weights" if method.init is not None else ""
        raise ConfigError(f"{folder} holds a run {others}. Choose another --dir")
    write_atomic(path, f"{found}\n{images}\n".encode())


def same_images(folder: Path, data: Dataset, owners: Mapping[str, Tensor]) -> bool:
    """Whether clients have the images now that a run began with, as far as its directory tells."""
    path = folder / "images.sha256"
    return not path.is_file() or path.read_text("utf-8").split()[1:] in ([], [_dealt(data, owners)])


def _dealt(data: Dataset, owners: Mapping[str, Tensor], *others: Any) -> str:
    """A hash of who has which images, of which other hashes are told too."""
    digest = hashlib.sha256()
    for client, index in owners.items():
        said = json.dumps([client, len(index), *data.train.image]).encode()
        for piece in chain([said], (part.numpy().data for part in data.train.held.select(index).chunks(1024))):
            for each in (digest, *others):
                each.update(piece)
    return digest.hexdigest()
