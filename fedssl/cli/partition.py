"""Print and save how many images of each class each client has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from fedssl.core.console import print_to_stderr
from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import write_atomic
from fedssl.core.rich_console import Console
from fedssl.data import Dataset, earth_movers_distance, histogram
from fedssl.experiment.client_data import partition_data, read_data
from fedssl.experiment.experiment import Experiment
from fedssl.plots.partition import plot_partition

MAX_CLASSES = 20  # columns that fit on a wide terminal


def show_partition(
    experiment: Experiment,
    data_dir: Path,
    *,
    picture: Path | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Print the partition of an experiment's images; optionally draw it and save the indices."""
    data = read_data(experiment, data_dir, None, print_to_stderr)
    _, parts = partition_data(experiment, data, print_to_stderr)
    counts = _class_counts(parts, data)
    if as_json:
        print(json.dumps(_to_dict(parts, counts)))
    else:
        _print(parts, data.train.classes, counts)
    if save is not None:
        indices = {client: index.tolist() for client, index in parts.items()}
        write_atomic(save, json.dumps(indices).encode())
    if picture is not None:
        _draw(counts, data.train.classes, picture)


def _class_counts(parts: dict[str, Tensor], data: Dataset) -> Tensor | None:
    """Return the number of images (clients, classes); None without labels."""
    if not data.train.labelled:
        return None
    labels = data.train.labels
    classes = max(len(data.train.classes), int(labels.max()) + 1)
    return histogram(parts, labels, classes)


def _to_dict(parts: dict[str, Tensor], counts: Tensor | None) -> dict[str, Any]:
    values: dict[str, Any] = {
        "images": {client: len(index) for client, index in parts.items()},
        "classes": None,
        "earth_movers_distance": None,
    }
    if counts is not None:
        values["classes"] = dict(zip(parts, counts.tolist(), strict=True))
        values["earth_movers_distance"] = earth_movers_distance(counts)
    return values


def _draw(counts: Tensor | None, classes: tuple[str, ...], path: Path) -> None:
    if counts is None:
        raise ConfigError("there is no picture to draw: the images have no labels")
    title = f"average earth mover's distance {earth_movers_distance(counts):.2f}"
    try:
        plot_partition(counts, classes, title, path=path)
    except ImportError:
        raise ConfigError(
            'a picture needs matplotlib: in a clone of fedssl, pip install ".[viz]"'
        ) from None


def _print(parts: dict[str, Tensor], classes: tuple[str, ...], counts: Tensor | None) -> None:
    console = Console()
    console.print(_table(parts, classes, counts))
    if counts is None:
        console.print("The images have no labels, so only their number is known.")
        return
    if counts.shape[1] > MAX_CLASSES:
        console.print(
            f"the first {MAX_CLASSES} of {counts.shape[1]} classes; --json prints all of them",
            highlight=False,
        )
    distance = earth_movers_distance(counts)
    console.print(
        f"earth mover's distance of clients from the whole: {distance:.3f} "
        "(0: the same mix, 2: nothing in common)",
        highlight=False,
    )


def _table(parts: dict[str, Tensor], classes: tuple[str, ...], counts: Tensor | None) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("client", no_wrap=True)
    table.add_column("images", justify="right", no_wrap=True)
    columns = 0 if counts is None else min(MAX_CLASSES, counts.shape[1])
    for label in range(columns):
        name = classes[label] if classes else str(label)
        table.add_column(escape(name), justify="right")
    for row, (client, index) in enumerate(parts.items()):
        cells = []
        if counts is not None:
            cells = [str(number or "·") for number in counts[row, :columns].int().tolist()]
        table.add_row(escape(client), str(len(index)), *cells)
    return table
