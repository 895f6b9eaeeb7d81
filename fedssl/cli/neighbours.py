"""Run `fedssl search` and print its table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.markup import escape
from rich.table import Table

from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError
from fedssl.core.rich_console import wide_console
from fedssl.data.folder_listing import printable
from fedssl.downstream.backbone import TrainedBackbone
from fedssl.downstream.embed import Embeddings, check_features, embed, read_embeddings
from fedssl.downstream.search import Neighbour, check_query, draw_result, search


class Query(NamedTuple):
    """The arguments of `fedssl search`."""

    image: Path
    images: Path  # a folder, or features.npz
    k: int
    out: Path | None
    folder: Path | None  # of the images, if `images` is features.npz

    @property
    def image_folder(self) -> Path | None:
        """The folder of the image files; None if it is not known."""
        if self.images.is_dir():
            return self.images
        return self.folder

    def check(self) -> None:
        """Raise ConfigError for a picture without image files, missing files or a k below 1."""
        if self.out is not None and self.image_folder is None:
            raise ConfigError("a picture needs the image files: name their folder with --folder")
        check_query(self.image, self.k)
        if not self.images.is_dir():
            check_features(self.images)


def run_search(backbone: TrainedBackbone, query: Query, notify: Notify, *, as_json: bool) -> None:
    """Find the neighbours of a query, print them, and draw them if `query.out` is set."""
    backbone.features(query.image)  # an unreadable query is reported before the folder is read
    folder = query.image_folder
    embeddings = _embeddings(backbone, query.images, notify)
    neighbours = search(backbone, query.image, embeddings, query.k, folder=folder)
    if as_json:
        print(json.dumps([neighbour._asdict() for neighbour in neighbours]))
    else:
        print_neighbours(neighbours)
    if query.out is not None and folder is not None:
        draw_result(query.image, folder, neighbours, query.out)
        notify(f"wrote {query.out}")


def _embeddings(backbone: TrainedBackbone, images: Path, notify: Notify) -> Embeddings:
    if images.is_file():
        return read_embeddings(images)
    return embed(backbone, images, notify=notify)


def print_neighbours(neighbours: Sequence[Neighbour]) -> None:
    """Print rank, similarity and name of each neighbour."""
    table = Table(box=None, pad_edge=False)
    table.add_column("rank", justify="right")
    table.add_column("similarity", justify="right")
    table.add_column("file", overflow="fold")
    for neighbour in neighbours:
        name = escape(printable(neighbour.name))
        table.add_row(str(neighbour.rank), f"{neighbour.similarity:.4f}", name)
    wide_console().print(table)
