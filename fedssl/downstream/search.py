"""Find the images of a folder that are nearest to a query image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.core.errors import ConfigError, DataError
from fedssl.core.missing_paths import no_file
from fedssl.data import decode
from fedssl.data.folder import BACKGROUNDS
from fedssl.downstream.backbone import TrainedBackbone
from fedssl.downstream.embed import Embeddings
from fedssl.plots.neighbour_sheet import QUERY_SIDE, SIDE, Captioned, draw_neighbours

WHITE = BACKGROUNDS["white"]


class Neighbour(NamedTuple):
    """An image near the query, by the cosine of the angle between their features."""

    rank: int  # from 1
    similarity: float  # at most 1
    name: str  # below the folder


def search(
    backbone: TrainedBackbone,
    query: str | Path,
    embeddings: Embeddings,
    k: int = 12,
    *,
    folder: str | Path | None = None,
) -> list[Neighbour]:
    """Return the k nearest images to a query image, the nearest first.

    If the query is one of the embedded images, it is not its own neighbour. `folder` is that of the
    embedded images; without it, the query is recognised by its name and features.

    Raise ConfigError if the query file does not exist, or if the features are those of another
    backbone.
    """
    check_query(query, k)
    if embeddings.fingerprint != backbone.fingerprint():
        raise ConfigError(
            "these features were computed by another backbone: write them again with `fedssl embed`"
        )
    feature = backbone.features(query)
    if folder is None:
        excluded = _same_image(Path(query), feature, embeddings)
    else:
        excluded = _name_in(Path(query), Path(folder))
    return nearest(feature, embeddings, k, excluded)


def check_query(query: str | Path, k: int) -> None:
    """Raise ConfigError if the query is not a file, or for fewer than one image to find."""
    if not Path(query).is_file():
        raise ConfigError(no_file(query))
    if k < 1:
        raise ConfigError(f"k must be at least 1 (got {k})")


def nearest(
    feature: Tensor, embeddings: Embeddings, k: int, excluded: str | None = None
) -> list[Neighbour]:
    """Return the k images whose features have the largest cosine with a feature (dim,).

    Images with equal similarities are in the order of their names.
    """
    unit = F.normalize(feature[None].double(), dim=1)
    similarities = (F.normalize(embeddings.features.double(), dim=1) @ unit.T)[:, 0]
    neighbours: list[Neighbour] = []
    for index in torch.argsort(similarities, descending=True, stable=True).tolist():
        if embeddings.names[index] == excluded:
            continue
        if len(neighbours) == k:
            break
        rank = len(neighbours) + 1
        neighbours.append(Neighbour(rank, float(similarities[index]), embeddings.names[index]))
    return neighbours


def draw_result(
    query: str | Path, folder: str | Path, neighbours: Sequence[Neighbour], path: str | Path
) -> None:
    """Write a PNG with the query and its neighbours, each with its similarity and name.

    Raise DataError if an image cannot be read.
    """
    tiles = []
    for neighbour in neighbours:
        caption = f"{neighbour.rank}   {neighbour.similarity:.3f}"
        pixels = _thumbnail(Path(folder) / neighbour.name, SIDE)
        tiles.append(Captioned(pixels, caption, neighbour.name))
    title = f"the {len(neighbours)} nearest images, by cosine similarity of features"
    query = Path(query)
    name = _name_in(query, Path(folder)) or query.name
    large = Captioned(_thumbnail(query, QUERY_SIDE), "query", name)
    draw_neighbours(large, tiles, title, Path(path))


def _thumbnail(file: Path, side: int) -> Tensor:
    """Return all of an image file as uint8 (3, h, h), h at most `side`, on a white square."""
    try:
        width, height, _, _ = decode.read_header(file)
        size = min(side, max(width, height))  # small images are not enlarged here
        return torch.from_numpy(decode.decode(file, size, 3, WHITE, pad=True))
    except decode.Unreadable as problem:
        raise DataError("an image of the picture cannot be read", f"{problem}: {file}") from None


def _same_image(query: Path, feature: Tensor, embeddings: Embeddings) -> str | None:
    """Return the name of the query among the embedded images; None if it is not one of them.

    The path of the query ends in the name, and its features are equal up to rounding.
    """
    path = str(query.resolve())
    for name, other in zip(embeddings.names, embeddings.features, strict=True):
        if path.endswith(f"{os.sep}{name}") and torch.allclose(feature, other, 1e-3, 1e-4):
            return name
    return None


def _name_in(file: Path, folder: Path) -> str | None:
    """Return the name of a file below a folder; None if it is not in it."""
    try:
        return str(file.resolve().relative_to(folder.resolve()))
    except ValueError:
        return None
