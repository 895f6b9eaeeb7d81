"""Run `fedssl classify` and print its report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.markup import escape
from rich.table import Table

from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import check_replaceable
from fedssl.core.rich_console import wide_console
from fedssl.downstream.backbone import load_backbone
from fedssl.downstream.classify.classifier import is_classifier, load_classifier
from fedssl.downstream.classify.report import Report
from fedssl.downstream.classify.train import train_classifier, write_predictions
from fedssl.evaluation.verdict import ends, signed

PREDICTIONS = Path("predictions.csv")


class Classification(NamedTuple):
    """The arguments of `fedssl classify`."""

    place: Path  # of a backbone or a classifier
    folders: tuple[Path, ...]
    out: Path | None
    save: Path | None
    model: str | None
    device: str

    def split_folders(self, trained: bool) -> tuple[Path | None, Path | None]:
        """Return the folder of labelled images and that of images to classify."""
        if trained:
            if len(self.folders) != 1:
                raise ConfigError(
                    "this classifier is already trained: pass only the folder of images to classify"
                )
            return None, self.folders[0]
        if len(self.folders) > 2:
            raise ConfigError(
                f"got {len(self.folders)} folders: pass the folder of labelled images and the "
                "folder of images to classify"
            )
        if len(self.folders) == 2:
            return self.folders
        if self.out is not None:
            raise ConfigError(
                f"there are no predictions to write to {self.out}: pass the folder of images to "
                "classify after that of labelled images"
            )
        return self.folders[0], None


def run_classification(wanted: Classification, notify: Notify, *, as_json: bool) -> None:
    """Train or load a classifier, print its report, save it and classify a folder."""
    labelled, images = wanted.split_folders(trained=is_classifier(wanted.place))
    predictions = wanted.out or PREDICTIONS
    if images is not None:
        check_replaceable(predictions)
    result: dict[str, Any] = {}
    if labelled is None:
        classifier = load_classifier(wanted.place, device=wanted.device)
    else:
        backbone = load_backbone(wanted.place, wanted.model, device=wanted.device)
        classifier, report = train_classifier(backbone, labelled, notify=notify)
        if images is not None and _contain_each_other(labelled, images):
            notify(
                f"{images} has images that the classifier was trained on: its predictions for "
                "these are more accurate than for other images"
            )
        result["report"] = report.values()
        if not as_json:
            print_report(report)
    if wanted.save is not None:
        classifier.save(wanted.save)
        notify(f"wrote {wanted.save}")
    if images is not None:
        counts = write_predictions(classifier, images, predictions, notify=notify)
        result |= {"counts": counts, "predictions": str(predictions)}
        if not as_json:
            print_counts(counts, predictions)
    if as_json:
        print(json.dumps(result))


def _contain_each_other(first: Path, second: Path) -> bool:
    """True if two folders are the same, or one is in the other."""
    first = first.resolve()
    second = second.resolve()
    return first.is_relative_to(second) or second.is_relative_to(first)


def print_report(report: Report) -> None:
    """Print the total accuracy, compared with the largest class, and that of each class."""
    accuracy = report.accuracy
    images = sum(row.images for row in report.rows)
    print(
        f"cross-validated accuracy: {accuracy.estimate:.1f}% (95% interval {accuracy.low:.1f} … "
        f"{accuracy.high:.1f}), {images:,} labelled images, {report.folds} folds"
    )
    print(
        f'always predicting "{report.majority_class}": {report.majority:.1f}%; difference '
        f"{signed(report.gain.estimate)} points (95% interval {ends(report.gain)})"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("class")
    table.add_column("images", justify="right")
    table.add_column("recall", justify="right")
    table.add_column("precision", justify="right")
    table.add_column("mostly confused with")
    for row in report.rows:
        precision = "" if row.precision is None else f"{row.precision:.0f}%"
        cells = (row.name, f"{row.images:,}", f"{row.recall:.0f}%", precision)
        table.add_row(*map(escape, cells), escape(row.confused_with or ""))
    wide_console().print(table)


def print_counts(counts: Mapping[str, int], path: Path) -> None:
    """Print how many images were predicted as each class."""
    print(f"classified {sum(counts.values()):,} images:")
    width = max(map(len, counts))
    for name, count in counts.items():
        print(f"  {name:{width}}  {count:,}")
    print(f"wrote {path}")
