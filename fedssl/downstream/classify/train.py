"""Train a classifier on a folder of labelled images, and classify the images of another folder."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from fedssl.core.console import Notify, print_to_stderr
from fedssl.core.errors import DataError
from fedssl.core.files.atomic import replaced_file
from fedssl.data.folder_listing import printable
from fedssl.downstream.backbone import TrainedBackbone
from fedssl.downstream.classify.classifier import Classifier
from fedssl.downstream.classify.fit import fit_head
from fedssl.downstream.classify.report import Report, make_report
from fedssl.downstream.embed import embed
from fedssl.downstream.image_folder import ImageFolder
from fedssl.probes.features import Labelled


class Trained(NamedTuple):
    """A classifier and how accurate it is on labelled images that were held out."""

    classifier: Classifier
    report: Report


class FilePrediction(NamedTuple):
    """The most probable class of a file."""

    file: str  # below the folder
    label: str
    confidence: float


def train_classifier(
    backbone: TrainedBackbone, labelled: str | Path, *, notify: Notify = print_to_stderr
) -> Trained:
    """Return a classifier trained on a folder with one folder of images for each class.

    The backbone does not change. Raise DataError if there are fewer than two classes, or fewer than
    two images of a class that can be read.
    """
    embeddings = embed(backbone, labelled, notify=notify)
    names = []
    for name in embeddings.names:
        first, separator, _ = name.partition(os.sep)
        if not separator:
            raise DataError(
                f"{labelled} has an image that is in no folder of a class: labelled images are in "
                "one folder for each class",
                printable(name),
            )
        names.append(printable(first))
    classes = sorted(set(names))
    if len(classes) < 2:
        raise DataError(f'{labelled} has images of one class only, "{classes[0]}": two are needed')
    numbers = {name: number for number, name in enumerate(classes)}
    labels = torch.tensor([numbers[name] for name in names])
    fit = fit_head(Labelled(embeddings.features, labels), classes, notify=notify)
    report = make_report(labels, fit.held_out, classes, folds=fit.folds, penalty=fit.penalty)
    about = {
        "images": len(labels),
        "penalty": fit.penalty,
        "accuracy": report.accuracy._asdict(),
    }
    return Trained(Classifier(backbone, fit.layer, classes, about), report)


def classify_folder(
    classifier: Classifier, folder: str | Path, *, notify: Notify = print_to_stderr
) -> Iterator[FilePrediction]:
    """Yield the most probable class of each image in a folder and its subfolders.

    Files that cannot be read are skipped and reported. Raise DataError if no image can be read.
    """
    images = ImageFolder(folder, notify)
    for batch in images.batches(classifier.preprocess):
        features = classifier.backbone.features_of_pixels(batch.pixels)
        predictions = classifier.predictions(classifier.probabilities_of_features(features))
        for name, prediction in zip(batch.names, predictions, strict=True):
            yield FilePrediction(name, prediction.label, prediction.confidence)


def write_predictions(
    classifier: Classifier,
    folder: str | Path,
    path: str | Path,
    *,
    notify: Notify = print_to_stderr,
) -> dict[str, int]:
    """Write a CSV file with the class and the confidence of each image of a folder.

    Return the number of images of each class. Nothing is written if no image can be read.
    """
    counts = dict.fromkeys(classifier.classes, 0)
    with replaced_file(Path(path)) as file:
        text = io.TextIOWrapper(file, "utf-8", errors="surrogateescape", newline="")
        writer = csv.writer(text)
        writer.writerow(["file", "class", "confidence"])
        for prediction in classify_folder(classifier, folder, notify=notify):
            counts[prediction.label] += 1
            row = [prediction.file, prediction.label, f"{prediction.confidence:.4f}"]
            writer.writerow(row)
        text.detach()  # flushes, and leaves the file open
    return counts
