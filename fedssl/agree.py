"""Check that a run directory can be resumed: with its experiment, and with its images."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssl import integrity
from fedssl.changes import differences, harmless
from fedssl.data import Dataset
from fedssl.data.progress import Say
from fedssl.errors import ConfigError, FedsslError
from fedssl.experiment import Experiment
from fedssl.report.rounds import read_rounds
from fedssl.store import Store
from fedssl.train import resolve_precision

EXPERIMENT = "experiment.toml"
IMAGES = "images.sha256"
FLOWER = "flower.json"


def started(folder: Path) -> bool:
    """True if training has started in a directory: it has a checkpoint or a line in its log."""
    checkpoints = folder / "checkpoints"
    logs = [folder / name for name in ("rounds.jsonl", "rounds.jsonl.copy")]
    if any(log.is_file() and log.stat().st_size for log in logs):
        return True
    return any(True for kind in ("*.json", "*.damaged") for _ in checkpoints.glob(kind))


def read_experiment(folder: Path, say: Say) -> Experiment:
    """Return the experiment of a run directory; refuse one that was edited after the run was started.

    A file that is damaged is not used: its recorded copy is.
    """
    path = folder / EXPERIMENT
    copy = integrity.copy_of(folder, EXPERIMENT)
    if copy is None or path.read_bytes() == copy.encode():  # None: written by an earlier version
        return Experiment.from_file(path)
    recorded = Experiment.from_toml(copy, str(folder / integrity.NAME))
    _refuse_edited(path, recorded)
    say(f"{path} is damaged; its copy in {integrity.NAME} is used")
    return recorded


def _refuse_edited(path: Path, recorded: Experiment) -> None:
    """Refuse a file that holds a valid experiment with other values."""
    try:
        edited = Experiment.from_file(path)
    except ConfigError:
        return
    changed = differences(recorded.to_dict(), edited.to_dict())
    if changed:
        lines = _listed(changed, list(changed), "when the run was started", "in the file now")
        raise ConfigError(
            f"{path} was changed after the run was started ({lines}). Undo that; settings are changed with --set"
        )


def _listed(changed: Mapping[str, tuple[Any, Any]], keys: list[str], first: str, second: str) -> str:
    lines = [f"{key}: {changed[key][0]!r} {first}, {changed[key][1]!r} {second}" for key in keys[:3]]
    if len(keys) > 3:
        lines.append(f"and {len(keys) - 3} more")
    return "; ".join(lines)


def undamaged(folder: Path) -> bool:
    """True if the checkpoints and the files next to them are intact. Only reads, and no image."""
    said: list[str] = []
    try:
        read_experiment(folder, said.append)
        integrity.read_text(folder, IMAGES, said.append)
        integrity.check(folder, said.append)
        store = Store(folder)
        newest = store.load(said.append)
        if newest is not None:
            store.damaged_spares(newest, said.append)
        deque(read_rounds(folder / "rounds.jsonl", said.append), maxlen=0)
    except FedsslError as problem:
        said.append(str(problem))
    return not said


def agree(experiment: Experiment, folder: Path, device: torch.device, say: Say) -> Experiment:
    """Return the experiment as it will run in this directory; refuse one that differs from the run started there."""
    precision = resolve_precision(experiment.train.precision, device)
    wanted = experiment.with_changes({"train.precision": precision})
    path = folder / EXPERIMENT
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file, not a run directory. Choose another --dir")
    if path.is_file() and (started(folder) or not _left_over(path)):
        begun = read_experiment(folder, say)
        changed = differences(begun.to_dict(), wanted.to_dict())
        refused = [key for key in changed if not harmless(key)]
        if wanted.rounds < begun.rounds:
            refused.append("rounds")
        if refused:
            lines = _listed(changed, refused, "there", "asked for")
            raise ConfigError(f"{folder} holds a run of another experiment ({lines}). Choose another --dir")
        if wanted.rounds > begun.rounds and wanted.train.schedule != "constant":
            say(
                f"{begun.rounds} rounds become {wanted.rounds}: the learning rate follows the longer schedule from here"
            )
    return wanted


def _left_over(path: Path) -> bool:
    """True if fedssl wrote this experiment.toml: without a checkpoint it is what a start that failed left behind."""
    try:
        return Experiment.from_file(path).to_toml() == path.read_text("utf-8")
    except ConfigError:
        return False


def agree_on_images(
    experiment: Experiment,
    folder: Path,
    data: Dataset,
    owners: Mapping[str, Tensor],
    public: Tensor | None,
    say: Say,
) -> str:
    """Return the contents of images.sha256; refuse other images than those the run was started with.

    Other public images, another partition, other first weights and, where they are learned from, other labels are
    refused as well. The first line is a hash of all that, the second one of clients' images alone.
    """
    digest, method = hashlib.sha256(), experiment.method
    if method.init is not None and method.init.is_file():
        digest.update(hashlib.sha256(method.init.read_bytes()).digest())
    if method.method.learns_from_labels and data.train.labelled:
        digest.update(data.train.labels.to(torch.int64).numpy().data)
    if public is not None:
        digest.update(json.dumps(list(public.shape)).encode())
        digest.update(public.numpy().data)
    images = _dealt(data, owners, digest)
    found = digest.hexdigest()
    recorded = integrity.read_text(folder, IMAGES, say) if started(folder) else None
    if recorded is not None and recorded.split()[:1] != [found]:
        others = "on other images, or on these dealt otherwise"
        others += ", or with other labels" if method.method.learns_from_labels else ""
        others += ", or from other first weights" if method.init is not None else ""
        raise ConfigError(f"{folder} holds a run {others}. Choose another --dir")
    return f"{found}\n{images}\n"


def same_images(folder: Path, data: Dataset, owners: Mapping[str, Tensor], say: Say) -> bool:
    """True if clients have the images that the run was started with, as far as its directory records them."""
    recorded = integrity.read_text(folder, IMAGES, say)
    return recorded is None or recorded.split()[1:] in ([], [_dealt(data, owners)])


def _dealt(data: Dataset, owners: Mapping[str, Tensor], *others: Any) -> str:
    """A hash of who has which images, of which other hashes are told too."""
    digest = hashlib.sha256()
    for client, index in owners.items():
        said = json.dumps([client, len(index), *data.train.image]).encode()
        for piece in chain([said], (part.numpy().data for part in data.train.held.select(index).chunks(1024))):
            for each in (digest, *others):
                each.update(piece)
    return digest.hexdigest()
