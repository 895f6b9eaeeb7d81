"""`fedssl partition`: who gets how many images of what."""

from __future__ import annotations

import json
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from fedssl import assemble
from fedssl.data import Dataset, draw, earth_movers_distance, histogram
from fedssl.data.progress import say_on_stderr
from fedssl.errors import ConfigError
from fedssl.experiment import Experiment
from fedssl.store import write_atomic

SHOWN = 20  # classes that fit on a wide terminal


def show_partition(
    experiment: Experiment, data_dir: Path, picture: Path | None, save: Path | None, as_json: bool
) -> None:
    data = assemble.read_data(experiment, data_dir, None, say_on_stderr)
    _, parts = assemble.deal(experiment, data, say_on_stderr)
    counts = _counts(parts, data)
    if as_json:
        print(
            json.dumps(
                {
                    "images": {client: len(index) for client, index in parts.items()},
                    "classes": None if counts is None else dict(zip(parts, counts.tolist(), strict=True)),
                    "earth_movers_distance": None if counts is None else earth_movers_distance(counts),
                }
            )
        )
    else:
        _print(parts, data, counts)
    if save is not None:
        write_atomic(save, json.dumps({client: index.tolist() for client, index in parts.items()}).encode())
    if picture is not None and counts is None:
        raise ConfigError("there is no picture to draw: the images have no labels")
    if picture is not None and counts is not None:
        _draw(counts, data.train.classes, picture)


def _draw(counts: Tensor, classes: tuple[str, ...], path: Path) -> None:
    try:
        draw(counts, classes, path)
    except ImportError:
        raise ConfigError('a picture needs matplotlib: in a clone of fedssl, pip install ".[viz]"') from None


def _counts(parts: dict[str, Tensor], data: Dataset) -> Tensor | None:
    """(clients, classes), or None where nobody knows the classes."""
    if not data.train.labelled:
        return None
    labels = data.train.labels
    return histogram(parts, labels, max(len(data.train.classes), int(labels.max()) + 1))


def _print(parts: dict[str, Tensor], data: Dataset, counts: Tensor | None) -> None:
    console, table = Console(), Table(box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("client", no_wrap=True)
    table.add_column("images", justify="right", no_wrap=True)
    for label in range(min(SHOWN, 0 if counts is None else counts.shape[1])):
        table.add_column(escape(data.train.classes[label] if data.train.classes else str(label)), justify="right")
    for row, (client, index) in enumerate(parts.items()):
        cells = [] if counts is None else [str(n or "·") for n in counts[row, :SHOWN].int().tolist()]
        table.add_row(escape(client), str(len(index)), *cells)
    console.print(table)
    if counts is not None:
        if counts.shape[1] > SHOWN:
            console.print(f"the first {SHOWN} of {counts.shape[1]} classes; --json has them all", highlight=False)
        distance = earth_movers_distance(counts)
        scale = "0: the same mix, 2: nothing in common"
        console.print(f"earth mover's distance of clients from the whole: {distance:.3f} ({scale})", highlight=False)
    else:
        console.print("The images have no labels, so only their number is known.")
