"""`fedssl finetune detection`: Mask R-CNN from an exported backbone, on COCO's annotations.

Departures from Detectron's "1x": torchvision's Mask R-CNN keeps 2,000 proposals of an image in
training (Detectron 1,000) and pools regions without the half-pixel shift; norm layers of the
backbone are trained by default (`norm`), as is usual when self-supervised backbones are fine-tuned
in batches of 16 over several GPUs with common statistics. Here the whole batch is on one device,
which is equivalent. Detectron freezes them, and the stem and the first stage (`freeze = 2`),
because each of its GPUs sees two images; the features of a self-supervised backbone are not scaled
for that, and an untrained backbone has no statistics that could be frozen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from fedssl import nets
from fedssl.core.console import Notify, ignore_message, meter, print_to_stderr
from fedssl.core.devices.select import resolve_device
from fedssl.core.errors import ConfigError, explained_errors
from fedssl.core.files import integrity
from fedssl.core.files.atomic import write_atomic
from fedssl.core.files.lock import locked_directory
from fedssl.core.provenance import environment
from fedssl.downstream.object_detection import maskrcnn
from fedssl.downstream.object_detection.backbone_file import ExportedBackbone, read_backbone
from fedssl.downstream.object_detection.coco import CocoDataset, read_coco
from fedssl.downstream.object_detection.coco_eval import average_precision, detect
from fedssl.downstream.object_detection.loader import Batches
from fedssl.downstream.object_detection.locate import Part
from fedssl.downstream.object_detection.settings import DetectionSettings
from fedssl.downstream.object_detection.training import Training

SETTINGS = "settings.json"
METRICS = "metrics.json"
MODEL = "model.safetensors"
SMALL_BATCH = 8  # images: with fewer, the statistics of batches differ too much


class FineTuning(NamedTuple):
    """The inputs of one fine-tuning."""

    backbone: ExportedBackbone
    train: Part
    val: Part
    settings: DetectionSettings

    def identity(self) -> dict[str, Any]:
        """Return the values that must not change when it is resumed."""
        return {
            "settings": self.settings.model_dump(),
            "backbone": self.backbone.sha256,
            "train": _sha256(self.train.annotations),
            "val": _sha256(self.val.annotations),
        }


class Datasets(NamedTuple):
    """The data sets of a fine-tuning, with the same categories."""

    train: CocoDataset
    val: CocoDataset


def fine_tune(
    backbone: Path,
    train: Part,
    val: Part,
    settings: DetectionSettings | None = None,
    *,
    folder: Path | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> dict[str, Any]:
    """Fine-tune and evaluate a detector; resume if the directory exists.

    Return the content of metrics.json, and its directory as "dir".
    """
    notify = _console(quiet)
    settings = settings or DetectionSettings()
    maskrcnn.check_installed()
    maskrcnn.check_settings(settings)
    torch_device = resolve_device(device)
    task = FineTuning(read_backbone(backbone), train, val, settings=settings)
    datasets = _read_datasets(task, notify)
    identity = task.identity()
    folder = folder or default_dir(backbone, identity)
    with explained_errors(folder), locked_directory(folder):
        integrity.repair(folder, notify)
        _check_identity(folder, identity, notify)
        metrics = _read_finished(folder, notify)
        if not metrics:
            metrics = _train_and_evaluate(task, datasets, folder, device=torch_device, quiet=quiet)
    return {"dir": str(folder)} | metrics


def default_dir(backbone: Path, identity: Mapping[str, Any]) -> Path:
    """Return a directory next to the backbone, with the hash of the fine-tuning in its name."""
    text = json.dumps(identity, sort_keys=True)
    return backbone.parent / f"detection-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def load(file: Path | str, device: str = "cpu") -> nn.Module:
    """Return a fine-tuned detector from its model.safetensors, in eval mode.

    It takes a list of images (C, H, W) between 0 and 1, and returns torchvision's boxes, labels,
    scores and masks; `model.classes` has the labels' names, starting with label 1.
    """
    backbone = read_backbone(Path(file))
    header, weights = nets.read_weights(file)
    if "detection" not in header:
        raise ConfigError(
            f"{file} is a backbone, not a detector: fedssl finetune detection writes {MODEL}"
        )
    about = json.loads(header["detection"])
    settings = DetectionSettings(**about["settings"] | {"start": "pretrained", "freeze": 0})
    # The file has the weights of a whole detector, so the backbone is built untrained first.
    blank = backbone.untrained(0)
    model = maskrcnn.build_detector(blank, settings, len(about["classes"]))
    model.load_state_dict(weights)
    model.classes = list(about["classes"].values())  # type: ignore[assignment]
    return model.to(resolve_device(device)).eval()


def _train_and_evaluate(
    task: FineTuning, datasets: Datasets, folder: Path, *, device: torch.device, quiet: bool
) -> dict[str, Any]:
    """Run the remaining iterations, write the detector and its metrics, and return these."""
    notify = _console(quiet)
    model = _train(task, datasets.train, folder, device=device, quiet=quiet)
    _export(model, task, datasets.train.categories, folder)
    val = datasets.val
    title = f"measuring on {len(val.images):,} images"
    with meter(title, len(val.images), notify) as advance:
        detections = detect(model, val, task.backbone.channels, device=device, advance=advance)
        figures = average_precision(val, detections)
    metrics = task.identity() | {
        "iterations": task.settings.iterations,
        "start": task.settings.start,
        "train_images": len(datasets.train.images),
        "val_images": len(val.images),
        "environment": environment(device),
        **figures,
    }
    write_atomic(folder / METRICS, (json.dumps(metrics, indent=2) + "\n").encode())
    integrity.record_hashes(folder, [METRICS, MODEL])
    return metrics


def _train(
    task: FineTuning, train: CocoDataset, folder: Path, *, device: torch.device, quiet: bool
) -> nn.Module:
    """Return the detector after its last iteration, resuming from the newest checkpoint."""
    notify = _console(quiet)
    settings = task.settings
    channels = task.backbone.channels
    model = maskrcnn.build_detector(task.backbone, settings, len(train.categories)).to(device)
    batches = Batches(
        train.images, settings.batch, channels, flip=settings.flip, seed=settings.seed
    )
    if batches.batch < SMALL_BATCH and settings.norm == "train":
        notify(
            f"batches of {batches.batch} are small for training norm layers: "
            "norm = frozen may give better results"
        )
    training = Training(model, batches, settings, folder=folder, device=device)
    resumed = training.checkpoints.load(notify)
    done = 0
    if resumed is not None:
        done = resumed.iteration
        notify(f"resuming after iteration {done:,} of {settings.iterations:,}")
    with meter("fine-tuning", settings.iterations, notify, done=done) as advance:
        training.train(resumed, advance)
    return model


def _read_datasets(task: FineTuning, notify: Notify) -> Datasets:
    """Return the data sets for training and evaluation; images without objects are left out."""
    train = read_coco(task.train.annotations, task.train.images)
    val = read_coco(task.val.annotations, task.val.images)
    for name, dataset in (("train", train), ("val", val)):
        if dataset.dropped:
            notify(
                f"{name}: {dataset.dropped:,} objects have no extent inside their image "
                "and are left out"
            )
    _check_same_categories(task, train, val)
    with_objects = [image for image in train.images if image.single_objects]
    if not with_objects:
        raise ConfigError(
            f"{task.train.annotations} has no objects, so there is nothing to learn from"
        )
    empty = len(train.images) - len(with_objects)
    if empty and not task.settings.keep_empty:
        notify(
            f"train: {empty:,} images without objects are left out (keep_empty = true keeps them)"
        )
        train = train._replace(images=with_objects)
    return Datasets(train, val)


def _check_same_categories(task: FineTuning, train: CocoDataset, val: CocoDataset) -> None:
    """Raise a ConfigError if ids or names of categories differ."""
    for number in sorted(train.categories.keys() | val.categories.keys()):
        first = train.categories.get(number)
        second = val.categories.get(number)
        if first != second:
            raise ConfigError(
                f"{task.train.annotations} and {task.val.annotations} do not have the same "
                f"categories: {number} is {_quoted(first)} in the first and {_quoted(second)} "
                "in the second"
            )


def _quoted(name: str | None) -> str:
    return "missing" if name is None else f'"{name}"'


def _export(
    model: nn.Module, task: FineTuning, categories: Mapping[int, str], folder: Path
) -> None:
    """Write model.safetensors: with the backbone's header and the values that `load` needs."""
    about = {"settings": task.settings.model_dump(), "classes": categories}
    header, _ = nets.read_weights(task.backbone.file)
    header["detection"] = json.dumps(about)
    nets.save_backbone(model.state_dict(), folder / MODEL, header)


def _check_identity(folder: Path, identity: Mapping[str, Any], notify: Notify) -> None:
    """Record the identity in the directory; raise ConfigError if it has another fine-tuning."""
    text = integrity.read_text(folder, SETTINGS, notify)
    has_checkpoints = any((folder / "checkpoints").glob("*.safetensors"))
    has_started = has_checkpoints or (folder / METRICS).is_file()
    if text is not None and has_started:
        try:
            recorded = _flatten(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ConfigError(
                f"{folder / SETTINGS} is damaged: restore it from a backup, or choose another --dir"
            ) from None
        for key, value in _flatten(identity).items():
            if recorded.get(key) == value:
                continue
            difference = f"another {key}"
            if key.startswith("settings."):
                difference = f"{key} was {recorded.get(key)!r}, not {value!r}"
            raise ConfigError(
                f"{folder} holds another fine-tuning ({difference}): "
                "choose another --dir, or leave it out"
            )
    integrity.write_copied(folder, SETTINGS, json.dumps(identity, indent=2) + "\n")


def _flatten(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under "settings.NAME", then the other values."""
    others = dict(identity)
    settings = others.pop("settings")
    return {f"settings.{key}": value for key, value in settings.items()} | others


def _read_finished(folder: Path, notify: Notify) -> dict[str, Any] | None:
    """Return the metrics of a finished fine-tuning, or None if a file is missing or damaged."""
    damaged = integrity.damaged(folder)
    try:
        metrics = integrity.read_json(folder, METRICS)
    except ValueError:
        metrics = None
        damaged = damaged or [METRICS]
    if damaged:
        notify(
            f"{folder}: {', '.join(damaged)} is damaged; "
            "the detector is exported and measured again"
        )
        return None
    return metrics


def _console(quiet: bool) -> Notify:
    return ignore_message if quiet else print_to_stderr


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
