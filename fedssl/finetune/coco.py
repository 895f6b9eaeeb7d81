"""Annotations in COCO's format, read and checked whole before anything is trained.

Categories keep their numbers for the evaluation; the detector counts them from 1, in the order of these numbers, with 0
for the background. Crowds are kept and marked: training leaves them out, the evaluation forgives what is found in them.
Objects with no extent inside their image are dropped and counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedssl.errors import DataError
from fedssl.finetune.masks import covers

NO_EXTENT = 0.01  # pixels: less than this is no width or height, and would not survive float32 at a picture's far end

Box = tuple[float, float, float, float]


class Object(NamedTuple):
    """One annotated object, or a crowd of them."""

    label: int  # from 1
    box: Box  # left, top, right, bottom in pixels, inside the image
    given: Box  # left, top, width, height as annotated
    segmentation: Any  # a list of polygons (x, y, x, y …), or an RLE: {"counts": …, "size": [height, width]}
    crowd: bool
    area: float | None


class Picture(NamedTuple):
    """An image file and what is known about it."""

    id: int | str
    path: Path
    width: int
    height: int
    objects: tuple[Object, ...]

    @property
    def singles(self) -> list[Object]:
        """Those to learn from."""
        return [found for found in self.objects if not found.crowd]


class Coco(NamedTuple):
    pictures: list[Picture]
    categories: dict[int, str]  # by number, in order: the first is label 1
    dropped: int  # objects without extent


def read_coco(annotations: Path, images: Path) -> Coco:
    """A file of annotations and the folder its images lie in; the first thing wrong with either is a DataError."""
    body = _body(annotations)
    try:
        categories = _categories(body["categories"], annotations)
        entries = {entry["id"]: entry for entry in body["images"]}
        found: dict[Any, list[Object]] = {id: [] for id in entries}
        labels = {number: i for i, number in enumerate(sorted(categories), 1)}
        for annotation in body["annotations"]:
            for one in _objects(annotation, labels, entries, annotations):
                found[annotation["image_id"]].append(one)
        pictures = [
            Picture(id, images / entry["file_name"], int(entry["width"]), int(entry["height"]), tuple(found[id]))
            for id, entry in entries.items()
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        wrong = f"an entry has no {problem}" if isinstance(problem, KeyError) else str(problem)
        raise DataError(f"{annotations} is not in COCO's format: {wrong}") from None
    if len(entries) < len(body["images"]):
        raise DataError(f"{annotations} has two images of one id")
    if not pictures or not categories:
        raise DataError(f"{annotations} has no {'categories' if pictures else 'images'}")
    _check_files(pictures, annotations, images)
    kept = sum(len(picture.objects) for picture in pictures)
    return Coco(pictures, {number: categories[number] for number in labels}, len(body["annotations"]) - kept)


def _body(annotations: Path) -> dict[str, Any]:
    try:
        body = json.loads(annotations.read_bytes())
    except FileNotFoundError:
        raise DataError(f"there is no file of annotations {annotations}") from None
    except (OSError, ValueError) as problem:
        raise DataError(f"{annotations} cannot be read: {problem}") from None
    lacking = [key for key in ("images", "annotations", "categories") if not isinstance(body, dict) or key not in body]
    if lacking:
        raise DataError(f'{annotations} is not in COCO\'s format: it has no "{lacking[0]}"')
    return dict(body)


def _categories(entries: Iterable[Mapping[str, Any]], file: Path) -> dict[int, str]:
    """Their names by number. A detector's classes are told by name, so each has one, with its number behind it where
    another has the same."""
    found: dict[int, str] = {}
    for entry in entries:
        number = int(entry["id"])
        if number in found:
            raise DataError(f"{file} has two categories of one id, {number}")
        if not entry.get("name"):
            raise DataError(f'{file}: category {number} has no name: give it one, "name": "…"')
        found[number] = str(entry["name"])
    names = list(found.values())
    return {number: name if names.count(name) == 1 else f"{name} ({number})" for number, name in found.items()}


def _objects(
    annotation: Mapping[str, Any], labels: Mapping[int, int], entries: Mapping[Any, Any], file: Path
) -> Iterable[Object]:
    """The object of an annotation, or none where it has no extent."""
    entry = entries.get(annotation["image_id"])
    if entry is None:
        raise DataError(
            f"{file}: annotation {annotation.get('id')} is of image {annotation['image_id']}, which is none"
        )
    if annotation["category_id"] not in labels:
        raise DataError(
            f"{file}: annotation {annotation.get('id')} is of category {annotation['category_id']}, which is none"
        )
    width, height = int(entry["width"]), int(entry["height"])
    x, y, w, h = map(float, annotation["bbox"])
    if not all(map(math.isfinite, (x, y, w, h))):
        raise DataError(f"{file}: the box of annotation {annotation.get('id')} is not finite")
    left, top, right, bottom = max(x, 0.0), max(y, 0.0), min(x + w, float(width)), min(y + h, float(height))
    segmentation = _segmentation(annotation, height, width, file)
    if right - left < NO_EXTENT or bottom - top < NO_EXTENT or not segmentation:
        return
    try:
        covered = covers(segmentation, height, width)
    except DataError as problem:
        raise DataError(f"{file}, annotation {annotation.get('id')}: {problem}") from None
    if not covered:
        return
    area = annotation.get("area")
    yield Object(
        labels[annotation["category_id"]],
        (left, top, right, bottom),
        (x, y, w, h),
        segmentation,
        bool(annotation.get("iscrowd", 0)),
        None if area is None else float(area),
    )


def _segmentation(annotation: Mapping[str, Any], height: int, width: int, file: Path) -> Any:
    """As it is, but for polygons of fewer than three corners, which enclose nothing."""
    given = annotation.get("segmentation")
    if not given:
        raise DataError(
            f"{file}: annotation {annotation.get('id')} has no segmentation, and Mask R-CNN learns from masks"
        )
    if not isinstance(given, dict):
        return [polygon for polygon in given if len(polygon) >= 6 and len(polygon) % 2 == 0]
    if list(given["size"]) != [height, width]:
        raise DataError(
            f"{file}: the mask of annotation {annotation.get('id')} is of (height, width) = {given['size']}, "
            f"its image of {[height, width]}"
        )
    return {"counts": given["counts"], "size": [height, width]}


def _check_files(pictures: Iterable[Picture], annotations: Path, images: Path) -> None:
    missing = [picture.path for picture in pictures if not picture.path.is_file()]
    if missing:
        what = f"{len(missing):,} images of {annotations} are" if len(missing) > 1 else f"an image of {annotations} is"
        first = "the first" if len(missing) > 1 else "it"
        raise DataError(f"{what} not there; is {images} the right folder?", f"{first} is {missing[0]}")
