"""`fedssl classify`: train a classifier on a few labelled images, and use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.completion import complete_run
from fedssl.cli.options import (
    AsJson,
    Imports,
    ModelName,
    OneDevice,
    Quiet,
    check_output_file,
)
from fedssl.core.errors import ConfigError
from fedssl.core.user_modules import import_modules

Place = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="Run directory, exported backbone or hub folder; or the file of a classifier, which "
        "needs no labelled images.",
        autocompletion=complete_run,
    ),
]


def classify(
    dir: Place,
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="[LABELLED] [IMAGES]",
            help="Folder of labelled images, one folder per class; folder of images to classify.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="CSV file of predictions; default: predictions.csv."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write backbone, head and classes as one .safetensors file."),
    ] = None,
    model: ModelName = None,
    device: OneDevice = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
    imports: Imports = [],  # noqa: B006
) -> None:
    """Train a classifier on a few labelled images, measure it, and classify other images.

    The classifier is a linear layer on the features of the backbone. Its accuracy is
    cross-validated.
    """
    check_output_file(out, ".csv")
    check_output_file(save, ".safetensors")
    import_modules(imports)

    from fedssl.cli.classification import print_counts, print_report
    from fedssl.core.console import ignore_message, print_to_stderr
    from fedssl.downstream.backbone import load_backbone
    from fedssl.downstream.classify.classifier import is_classifier, load_classifier
    from fedssl.downstream.classify.train import train_classifier, write_predictions

    notify = ignore_message if quiet else print_to_stderr
    labelled, images = _split_folders(folders, trained=is_classifier(dir))
    if out is not None and images is None:
        raise ConfigError(f"there are no images to write to {out}: name their folder last")
    result: dict[str, object] = {}
    if labelled is None:
        classifier = load_classifier(dir, device=device)
    else:
        backbone = load_backbone(dir, model, device=device)
        trained = train_classifier(backbone, labelled, notify=notify)
        classifier = trained.classifier
        result["report"] = trained.report.values()
        if not as_json:
            print_report(trained.report)
    if save is not None:
        classifier.save(save)
        notify(f"wrote {save}")
    if images is not None:
        path = out or Path("predictions.csv")
        counts = write_predictions(classifier, images, path, notify=notify)
        result |= {"counts": counts, "predictions": str(path)}
        if not as_json:
            print_counts(counts, path)
    if as_json:
        print(json.dumps(result))


def _split_folders(folders: list[Path], trained: bool) -> tuple[Path | None, Path | None]:
    """Return the folder of labelled images and that of images to classify."""
    if trained:
        if len(folders) != 1:
            raise ConfigError(
                "this classifier is trained already: name one folder, of images to classify"
            )
        return None, folders[0]
    if len(folders) > 2:
        raise ConfigError(
            f"got {len(folders)} folders: name that of labelled images and that of images to "
            "classify"
        )
    return folders[0], folders[1] if len(folders) == 2 else None
