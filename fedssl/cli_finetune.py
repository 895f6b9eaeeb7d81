"""The command line: fedssl finetune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli_options import AsJson, Quiet, Sets

Device = Annotated[str, typer.Option(help="cpu, cuda (the first), cuda:N (that one), or auto: cuda if there is any.")]

finetune = typer.Typer(no_args_is_help=True, help="Fine-tune an exported backbone for another task.")


@finetune.callback()
def tasks() -> None: ...


@finetune.command()
def detection(
    backbone: Annotated[
        Path, typer.Argument(metavar="RUN_OR_BACKBONE", help="A run directory or an exported backbone.safetensors.")
    ],
    data: Annotated[Path | None, typer.Option(help="A folder laid out as COCO is, with train and val.")] = None,
    train_images: Annotated[Path | None, typer.Option(help="The folder of images to learn from.")] = None,
    train_annotations: Annotated[Path | None, typer.Option(help="Their annotations, as COCO's JSON.")] = None,
    val_images: Annotated[Path | None, typer.Option(help="The folder of images to measure on.")] = None,
    val_annotations: Annotated[Path | None, typer.Option(help="Their annotations.")] = None,
    start: Annotated[
        str, typer.Option("--from", help="pretrained, or random: the same backbone untrained, to compare with.")
    ] = "pretrained",
    iterations: Annotated[int, typer.Option(help="Steps; warm-up and both drops of the rate go with them.")] = 90_000,
    batch: Annotated[int, typer.Option(help="Images in a step.")] = 16,
    lr: Annotated[
        float | None, typer.Option(help="The learning rate; none: 0.02 for 16 images, in proportion.")
    ] = None,
    set: Sets = [],  # noqa: B006
    model: Annotated[str | None, typer.Option(help="Which backbone, of a run with several.")] = None,
    dir: Annotated[Path | None, typer.Option(help="Where to write; goes on where it stands.")] = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune Mask R-CNN with a feature pyramid, and measure the precision of its boxes and masks.

    --set norm=frozen changes a setting: momentum, decay, norm, freeze, size, longest, width, regions, flip,
    keep_empty, seed.
    """
    from fedssl.changes import parse_assignment
    from fedssl.finetune.detection import fine_tune
    from fedssl.finetune.folders import Given, locate
    from fedssl.finetune.settings import DetectionSettings
    from fedssl.finetune.start import find
    from fedssl.finetune.table import print_metrics
    from fedssl.settings import validate

    chosen = {"start": start, "iterations": iterations, "batch": batch, "lr": lr} | dict(map(parse_assignment, set))
    settings = validate(DetectionSettings, chosen)
    train = locate("train", data, Given(train_annotations, train_images))
    val = locate("val", data, Given(val_annotations, val_images))
    metrics = fine_tune(find(backbone, model), train, val, settings, dir, device, quiet)
    print(json.dumps(metrics)) if as_json else print_metrics(metrics)
