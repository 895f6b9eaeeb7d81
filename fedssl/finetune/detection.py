"""`fedssl finetune detection`: Mask R-CNN from an exported backbone, on annotations in COCO's format.

Departures from Detectron's "1x": torchvision's Mask R-CNN keeps 2,000 proposals of an image in training (1,000 there)
and pools regions without the half-pixel shift; norm layers of the backbone learn by default (`norm`), as they do where
self-supervised backbones are fine-tuned in batches of 16 over several GPUs with common statistics. Here the batch is
whole on one device, which is the same. Detectron freezes them, and the stem and the first stage (`freeze = 2`), because
a GPU of its sees two images; the features of a self-supervised backbone are not scaled for that, and those of
an untrained one have no statistics that could be frozen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from fedssl import integrity, nets
from fedssl.assemble import resolve_device
from fedssl.data.progress import Say, meter, say_nothing, say_on_stderr
from fedssl.errors import ConfigError, RunError
from fedssl.finetune import maskrcnn
from fedssl.finetune.batches import Batches
from fedssl.finetune.coco import Coco, read_coco
from fedssl.finetune.folders import Part
from fedssl.finetune.measure import average_precision, detect
from fedssl.finetune.progress import telling
from fedssl.finetune.settings import DetectionSettings
from fedssl.finetune.start import Start, read_start
from fedssl.finetune.training import Training
from fedssl.lock import entered
from fedssl.provenance import environment
from fedssl.store import write_atomic

SETTINGS = "settings.json"
METRICS = "metrics.json"
FEW = 8  # images: with fewer in a batch, statistics of one batch say little about the next


class Task(NamedTuple):
    """All that one fine-tuning is about."""

    start: Start
    train: Part
    val: Part
    settings: DetectionSettings

    def identity(self) -> dict[str, Any]:
        """What may not change when it goes on, as plain values."""
        return {
            "settings": self.settings.model_dump(),
            "backbone": self.start.sha256,
            "train": _hash(self.train.annotations),
            "val": _hash(self.val.annotations),
        }


def fine_tune(
    backbone: Path,
    train: Part,
    val: Part,
    settings: DetectionSettings | None = None,
    folder: Path | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> dict[str, Any]:
    """Fine-tune, going on where the directory stands, and measure: what metrics.json has, and "dir" where it lies."""
    say: Say = say_nothing if quiet else say_on_stderr
    settings = settings or DetectionSettings()
    maskrcnn.check_installed()
    maskrcnn.check(settings)
    place = resolve_device(device)
    task = Task(read_start(backbone), train, val, settings)
    known, unknown = _read(task, say)
    identity = task.identity()
    folder = folder or default_dir(backbone, identity)
    try:
        with entered(folder):
            integrity.repair(folder, say)
            _agree(folder, identity, say)
            metrics = _finished(folder, say) or _fine_tune(task, known, unknown, folder, place, quiet, say)
    except OSError as problem:
        raise RunError(f"{folder} cannot be written: {problem}; what was saved before is intact") from problem
    return {"dir": str(folder)} | metrics


def default_dir(backbone: Path, identity: Mapping[str, Any]) -> Path:
    """Beside the backbone, with a name of its own for everything that was asked for."""
    text = json.dumps(identity, sort_keys=True)
    return backbone.parent / f"detection-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def load(file: Path | str, device: str = "cpu") -> nn.Module:
    """A fine-tuned detector from its model.safetensors, in eval mode: images (C, H, W) between 0 and 1 in a list, in.

    Out come torchvision's boxes, labels, scores and masks; `model.classes` has the labels' names, from label 1 on.
    """
    start = read_start(Path(file))
    header = nets.read_weights(file)[0]
    if "detection" not in header:
        raise ConfigError(f"{file} is a backbone, not a detector: fedssl finetune detection writes model.safetensors")
    about = json.loads(header["detection"])
    settings = DetectionSettings(**about["settings"] | {"start": "pretrained"})
    blank = start.untrained(0)  # the file has a whole detector's weights, not a backbone's
    model = maskrcnn.build(blank, settings.model_copy(update={"freeze": 0}), len(about["classes"]))
    model.load_state_dict(start.weights)
    model.classes = list(about["classes"].values())  # type: ignore[assignment]
    return model.to(resolve_device(device)).eval()


def _fine_tune(
    task: Task, known: Coco, unknown: Coco, folder: Path, device: torch.device, quiet: bool, say: Say
) -> dict[str, Any]:
    start, settings = task.start, task.settings
    model = maskrcnn.build(start, settings, len(known.categories)).to(device)
    batches = Batches(known.pictures, settings.batch, start.channels, settings.flip, settings.seed)
    if batches.batch < FEW and settings.norm == "train":
        say(f"batches of {batches.batch} are few for norm layers that learn: norm = frozen may do better")
    training = Training(model, batches, settings, folder, device)
    resumed = training.checkpoints.load(say)
    if resumed is not None:
        say(f"going on after iteration {resumed.iteration:,} of {settings.iterations:,}")
    with telling(resumed.iteration if resumed else 0, settings.iterations, say, quiet) as progress:
        training.train(resumed, progress)
    _export(model, task, known, folder)
    with meter(f"measuring on {len(unknown.pictures):,} images", len(unknown.pictures), say) as advance:
        figures = average_precision(unknown, detect(model, unknown, start.channels, device, advance))
    metrics = task.identity() | {
        "iterations": settings.iterations,
        "start": settings.start,
        "train_images": len(known.pictures),
        "val_images": len(unknown.pictures),
        "environment": environment(device),
        **figures,
    }
    write_atomic(folder / METRICS, (json.dumps(metrics, indent=2) + "\n").encode())
    integrity.record_hashes(folder, [METRICS, "model.safetensors"])
    return metrics


def _read(task: Task, say: Say) -> tuple[Coco, Coco]:
    """What is learned from and what is measured on, of the same categories."""
    known, unknown = (read_coco(part.annotations, part.images) for part in (task.train, task.val))
    for name, coco in (("train", known), ("val", unknown)):
        if coco.dropped:
            say(f"{name}: {coco.dropped:,} objects have no extent inside their image and are left out")
    for number in sorted(known.categories.keys() | unknown.categories.keys()):
        said = (coco.categories.get(number) for coco in (known, unknown))
        first, second = ("none" if each is None else f'"{each}"' for each in said)
        if first != second:
            raise ConfigError(
                f"{task.train.annotations} and {task.val.annotations} do not have the same categories: "
                f"{number} is {first} in the first and {second} in the second"
            )
    some = [picture for picture in known.pictures if picture.singles]
    if not some:
        raise ConfigError(f"{task.train.annotations} has no object to learn from")
    if task.settings.keep_empty or len(some) == len(known.pictures):
        return known, unknown
    say(
        f"train: {len(known.pictures) - len(some):,} images without objects are left out (keep_empty = true keeps them)"
    )
    return known._replace(pictures=some), unknown


def _export(model: nn.Module, task: Task, known: Coco, folder: Path) -> None:
    """model.safetensors: a header like an exported backbone's, and what `load` needs beside."""
    about = {"settings": task.settings.model_dump(), "classes": known.categories}
    header = nets.read_weights(task.start.file)[0] | {"detection": json.dumps(about)}
    nets.save_backbone(model.state_dict(), folder / "model.safetensors", header)


def _agree(folder: Path, identity: Mapping[str, Any], say: Say) -> None:
    """Record what the directory is about, or refuse if it is about something else."""
    file = folder / SETTINGS
    text = integrity.read_text(folder, SETTINGS, say)
    started = any((folder / "checkpoints").glob("*.safetensors")) or (folder / METRICS).is_file()
    if text is not None and started:
        try:
            found = _flat(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ConfigError(f"{file} is damaged: restore it from a backup, or choose another --dir") from None
        for key, value in _flat(identity).items():
            if found.get(key) != value:
                told = f"{key} was {found.get(key)!r}, not {value!r}" if "." in key else f"another {key}"
                raise ConfigError(f"{folder} has another fine-tuning ({told}): choose another --dir, or leave it out")
    integrity.write_copied(folder, SETTINGS, json.dumps(identity, indent=2) + "\n")


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    settings = {f"settings.{key}": value for key, value in identity["settings"].items()}
    return settings | {key: value for key, value in identity.items() if key != "settings"}


def _finished(folder: Path, say: Say) -> dict[str, Any] | None:
    """Return the metrics of a finished fine-tuning; None if there are none, or if a file it left is damaged."""
    damaged = integrity.damaged(folder)
    try:
        metrics = integrity.read_json(folder, METRICS)
    except ValueError:
        metrics = None
        damaged = damaged or [METRICS]
    if damaged:
        say(f"{folder}: {', '.join(damaged)} is damaged; the detector is exported and measured again")
    return None if damaged else metrics


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
