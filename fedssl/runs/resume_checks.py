"""Check that a run directory can be resumed: with its experiment, and with its images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssl.core.console import Notify, ignore_message, shortened
from fedssl.core.errors import ConfigError, FedsslError, RunError
from fedssl.core.files import integrity, purge_note
from fedssl.core.similar_paths import suggest_path
from fedssl.core.user_modules import changed_modules, write_record
from fedssl.data import Dataset
from fedssl.engine.checkpoints.store import Store
from fedssl.engine.privacy.ledger import check_complete, read_charges
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.init_file import SHA256, init_changes
from fedssl.experiment.overrides import may_change
from fedssl.experiment.plain_values import differences
from fedssl.nets import given_weights
from fedssl.runs.rounds_log import read_rounds
from fedssl.training.trainer import resolve_precision

EXPERIMENT = "experiment.toml"
IMAGES = "images.sha256"
FLOWER = "flower.json"


def started(folder: Path) -> bool:
    """True if training has started in a directory: it has a checkpoint or a line in its log."""
    for name in ("rounds.jsonl", "rounds.jsonl.copy"):
        log = folder / name
        if log.is_file() and log.stat().st_size:
            return True
    checkpoints = folder / "checkpoints"
    return any(any(checkpoints.glob(pattern)) for pattern in ("*.json", "*.damaged"))


def check_run_directory(folder: Path) -> None:
    """Raise ConfigError if a folder is not a run directory."""
    if not _has_experiment(folder):
        suggestion = suggest_path(folder, _has_experiment)
        if not folder.exists():
            raise ConfigError(f"there is no run directory {folder}{suggestion}")
        raise ConfigError(f"{folder} is not a run directory: it has no {EXPERIMENT}{suggestion}")


def _has_experiment(folder: Path) -> bool:
    return (folder / EXPERIMENT).is_file()


def read_experiment(folder: Path, notify: Notify) -> Experiment:
    """Return the experiment of a run directory; its recorded copy if the file is damaged.

    Raise ConfigError if the file was edited after the run was started.
    """
    path = folder / EXPERIMENT
    copy = integrity.copy_of(folder, EXPERIMENT)
    if copy is None or path.read_bytes() == copy.encode():  # None: written by an earlier version
        return Experiment.from_file(path)
    recorded = Experiment.from_toml(copy, str(folder / integrity.NAME))
    _check_not_edited(path, recorded)
    notify(f"{path} is damaged; its copy in {integrity.NAME} is used")
    return recorded


def record_experiment(folder: Path, experiment: Experiment, *, trains: bool) -> None:
    """Write experiment.toml and, unless training has ended, the modules that it uses."""
    integrity.write_copied(folder, EXPERIMENT, experiment.to_toml())
    if trains:
        write_record(folder)


def announce_changed_modules(folder: Path, notify: Notify, *, trains: bool) -> None:
    """Print a line for each module of the user that has changed since a run was started."""
    for module in changed_modules(folder):
        if trains:
            notify(f"{module} has changed since the run was started; training uses it as it is now")
        else:
            notify(
                f"{module} has changed since the run was trained, so the model is that of the "
                "earlier file; to train with the changed one, choose another --dir"
            )


def _check_not_edited(path: Path, recorded: Experiment) -> None:
    """Raise ConfigError if a file holds a valid experiment with other values."""
    try:
        edited = Experiment.from_file(path)
    except ConfigError:
        return
    changed = differences(recorded.to_dict(), edited.to_dict())
    if changed:
        keys = _listed(changed, list(changed), "when the run was started", "in the file now")
        raise ConfigError(
            f"{path} was changed after the run was started ({keys}). Undo the edit; "
            "change settings with --set"
        )


def _listed(
    changed: Mapping[str, tuple[Any, Any]], keys: list[str], first: str, second: str
) -> str:
    """Return the first three keys with both of their values."""
    words = []
    for key in keys:
        old, new = changed[key]
        words.append(f"{key}: {old!r} {first}, {new!r} {second}")
    return "; ".join(shortened(words, 3))


def undamaged(folder: Path) -> bool:
    """True if the checkpoints and the files next to them are intact. Reads no image."""
    problems: list[str] = []
    try:
        read_experiment(folder, problems.append)
        integrity.read_text(folder, IMAGES, problems.append)
        integrity.check(folder, problems.append)
        store = Store(folder)
        newest = store.load(problems.append)
        if newest is not None:
            store.damaged_spares(newest, problems.append)
        for _ in read_rounds(folder / "rounds.jsonl", problems.append):
            pass  # reading a line verifies it
        charges = list(read_charges(folder, problems.append))
        if newest is not None:
            check_complete(folder, len(charges), newest.releases)
    except FedsslError as problem:
        problems.append(str(problem))
    return not problems


def check_resumable(
    experiment: Experiment, folder: Path, device: torch.device, notify: Notify
) -> Experiment:
    """Return the experiment as it will run in this directory.

    Raise ConfigError if it differs from the experiment of the run that was started there.
    """
    precision = resolve_precision(experiment.train.precision, device)
    changes = {"train.precision": precision, **init_changes(experiment.method)}
    wanted = experiment.with_changes(changes)
    path = folder / EXPERIMENT
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file, not a run directory. Choose another --dir")
    if path.is_file() and (started(folder) or not _left_over(path)):
        _check_resumable(folder, read_experiment(folder, notify), wanted, notify)
    return wanted


def raise_if_baseline_purged(experiment: Experiment, folder: Path) -> None:
    """Raise RunError if a run has a baseline that cannot be trained further, before training it."""
    names = experiment.probe.baselines
    for name in ["isolated"] if names is None else names:
        baseline = folder / name
        at = purge_note.purged_at(baseline)
        if at is not None:
            raise RunError(
                f"the run in {folder} cannot be extended with its baseline {name}: `fedssl purge` "
                f"removed the checkpoints in {baseline} ({at}); nothing was changed. Add "
                "--no-baselines to extend the run alone"
            )


def _check_resumable(folder: Path, begun: Experiment, wanted: Experiment, notify: Notify) -> None:
    """Raise ConfigError if a run cannot be resumed with the settings that are wanted now."""
    changed = differences(begun.to_dict(), wanted.to_dict())
    refused = [key for key in changed if not may_change(key)]
    if wanted.rounds < begun.rounds:
        refused.append("rounds")
    if refused == [SHA256]:
        old, new = changed[SHA256]
        raise ConfigError(
            f"{folder} holds a run whose adapters belong to the file with SHA-256 {old}, but "
            f"method.init, {wanted.method.init}, has SHA-256 {new} now: restore that file, or "
            "choose another --dir"
        )
    if refused:
        keys = _listed(changed, refused, "in that run", "now")
        raise ConfigError(
            f"{folder} holds a run of another experiment ({keys}). Choose another --dir"
        )
    if wanted.rounds > begun.rounds and wanted.train.schedule != "constant":
        notify(
            f"the run is extended from {begun.rounds} to {wanted.rounds} rounds: from here on the "
            "learning rate follows the longer schedule"
        )


def _left_over(path: Path) -> bool:
    """True if fedssl wrote this experiment.toml; without a checkpoint, a failed start left it."""
    try:
        return Experiment.from_file(path).to_toml() == path.read_text("utf-8")
    except ConfigError:
        return False


def check_same_images(
    experiment: Experiment,
    folder: Path,
    data: Dataset,
    owners: Mapping[str, Tensor],
    public: Tensor | None,
    notify: Notify,
) -> str:
    """Return the contents of images.sha256: a hash of all inputs, and one of the clients' images.

    Inputs are the clients' and public images, the partition, the first weights and, if the method
    learns from them, the labels. Raise ConfigError if the run was started with other inputs.
    """
    method = experiment.method
    digest = hashlib.sha256()
    if method.init is not None and method.init.is_file():
        digest.update(hashlib.sha256(method.init.read_bytes()).digest())
    given = given_weights(method.backbone)
    if given is not None:
        digest.update(given.encode())
    if method.method.learns_from_labels and data.train.labelled:
        digest.update(data.train.labels.to(torch.int64).numpy().data)
    if public is not None:
        digest.update(json.dumps(list(public.shape)).encode())
        digest.update(public.numpy().data)
    images = _hash_client_images(data, owners, digest)
    inputs = digest.hexdigest()
    recorded = integrity.read_text(folder, IMAGES, notify) if started(folder) else None
    if recorded is not None and recorded.split()[:1] != [inputs]:
        problem = "images, or their assignment to clients,"
        if method.method.learns_from_labels:
            problem += " or labels,"
        if method.init is not None or given is not None:
            problem += " or first weights,"
        raise ConfigError(
            f"{folder} holds a run whose {problem} differ from this experiment's. "
            "Choose another --dir"
        )
    return f"{inputs}\n{images}\n"


def same_images(folder: Path, data: Dataset, owners: Mapping[str, Tensor], notify: Notify) -> bool:
    """True if clients have the images that the run was started with, or if none are recorded."""
    recorded = integrity.read_text(folder, IMAGES, notify)
    return recorded is None or recorded.split()[1:] in ([], [_hash_client_images(data, owners)])


def _hash_client_images(data: Dataset, owners: Mapping[str, Tensor], *others: Any) -> str:
    """Return a hash of the images of each client; update `others` with the same bytes."""
    digest = hashlib.sha256()
    for client, index in owners.items():
        header = json.dumps([client, len(index), *data.train.image_shape]).encode()
        chunks = data.train.pixel_rows.select(index).chunks(1024)
        pixels = (chunk.numpy().data for chunk in chunks)
        for block in chain([header], pixels):
            for hasher in (digest, *others):
                hasher.update(block)
    return digest.hexdigest()


def runtime_facts(folder: Path) -> dict[str, bool]:
    """Return entries of results.json for a run on Flower whose server received sums only."""
    record = integrity.read_text(folder, FLOWER, ignore_message)
    if record is not None and json.loads(record).get("secure_aggregation", False) is True:
        return {"secure_aggregation": True}
    return {}
