"""`fedssl finetune`: fine-tune an exported backbone for another task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedssl.cli.completion import complete_run
from fedssl.cli.options import AsJson, OneDevice, Quiet, Sets

Backbone = Annotated[
    Path,
    typer.Argument(
        metavar="RUN_OR_BACKBONE",
        help="Run directory, or exported backbone.safetensors.",
        autocompletion=complete_run,
    ),
]
Coco = Annotated[
    Path | None, typer.Option(help="Folder with the layout of COCO, with train and val.")
]
TrainImages = Annotated[Path | None, typer.Option(help="Folder of training images.")]
TrainAnnotations = Annotated[
    Path | None, typer.Option(help="Annotations of the training images, as COCO's JSON.")
]
ValImages = Annotated[Path | None, typer.Option(help="Folder of validation images.")]
ValAnnotations = Annotated[Path | None, typer.Option(help="Annotations of the validation images.")]
Start = Annotated[
    str,
    typer.Option(
        "--from", help="pretrained, or random: the same backbone untrained, for comparison."
    ),
]
Iterations = Annotated[
    int, typer.Option(help="Training steps; the learning-rate schedule scales with them.")
]
Batch = Annotated[int, typer.Option(help="Images per step.")]
Rate = Annotated[
    float | None,
    typer.Option(help="Learning rate; default: 0.02 for 16 images, scaled with the batch size."),
]
Model = Annotated[str | None, typer.Option(help="Name of the backbone, if the run has several.")]
OutputDir = Annotated[Path | None, typer.Option(help="Output directory; resumed if it exists.")]
finetune = typer.Typer(
    no_args_is_help=True, help="Fine-tune a trained backbone to detect and segment objects."
)


@finetune.callback()
def tasks() -> None:
    """Make `finetune` a group of commands although it has only one."""


@finetune.command()
def detection(
    backbone: Backbone,
    data: Coco = None,
    train_images: TrainImages = None,
    train_annotations: TrainAnnotations = None,
    val_images: ValImages = None,
    val_annotations: ValAnnotations = None,
    start: Start = "pretrained",
    iterations: Iterations = 90_000,
    batch: Batch = 16,
    lr: Rate = None,
    set: Sets = [],  # noqa: B006
    model: Model = None,
    dir: OutputDir = None,
    device: OneDevice = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune Mask R-CNN with a feature pyramid; measure average precision (AP).

    --set norm=frozen changes a setting: momentum, decay, norm, freeze, size, longest, width,
    regions, flip, keep_empty, seed.
    """
    from fedssl.core.settings import validate
    from fedssl.downstream.exported_files import find_backbone
    from fedssl.downstream.object_detection.finetune import fine_tune
    from fedssl.downstream.object_detection.locate import ExplicitPaths, locate
    from fedssl.downstream.object_detection.settings import DetectionSettings
    from fedssl.experiment.plain_values import parse_assignment

    values = {"start": start, "iterations": iterations, "batch": batch, "lr": lr}
    values |= dict(map(parse_assignment, set))
    settings = validate(DetectionSettings, values)
    train = locate("train", data, ExplicitPaths(train_annotations, train_images))
    val = locate("val", data, ExplicitPaths(val_annotations, val_images))
    file = find_backbone(backbone, model)
    metrics = fine_tune(file, train, val, settings=settings, folder=dir, device=device, quiet=quiet)
    _print(metrics, as_json)


def _print(metrics: dict[str, Any], as_json: bool) -> None:
    from fedssl.downstream.object_detection.table import print_metrics

    if as_json:
        print(json.dumps(metrics))
    else:
        print_metrics(metrics)
