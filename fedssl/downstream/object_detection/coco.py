"""Read annotations in COCO's format and check them completely before training starts.

Categories keep their ids for the evaluation; the detector's labels count them from 1, in the order
of these ids, with 0 for the background. Crowds are kept and marked: training ignores them, and the
evaluation does not count detections in them as errors. Objects without extent inside their image
are dropped and counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedssl.core.errors import DataError
from fedssl.downstream.object_detection.masks import has_pixels

# Pixels: a smaller width or height would vanish in float32 at the far edge of an image.
MIN_EXTENT = 0.01

Box = tuple[float, float, float, float]
Entry = Mapping[str, Any]  # an object of the JSON file


class ObjectAnnotation(NamedTuple):
    """One annotated object, or a crowd of objects."""

    label: int  # from 1
    box: Box  # left, top, right, bottom in pixels, inside the image
    bbox: Box  # left, top, width, height as annotated
    # A list of polygons (x, y, x, y …), or an RLE: {"counts": …, "size": [height, width]}
    segmentation: Any
    crowd: bool
    area: float | None


class AnnotatedImage(NamedTuple):
    """An image file with its size and objects."""

    id: int | str
    path: Path
    width: int
    height: int
    objects: tuple[ObjectAnnotation, ...]

    @property
    def single_objects(self) -> list[ObjectAnnotation]:
        """Return the objects to train on: all but crowds."""
        return [annotation for annotation in self.objects if not annotation.crowd]


class CocoDataset(NamedTuple):
    """The content of one file of annotations."""

    images: list[AnnotatedImage]
    categories: dict[int, str]  # names by id, in order: the first is label 1
    dropped: int  # objects without extent


def read_coco(annotations: Path, images: Path) -> CocoDataset:
    """Return the content of a file of annotations, whose images are in the folder `images`.

    The first problem with the file, or with the images' names, is a DataError.
    """
    body = _read_json(annotations)
    try:
        categories = _parse_categories(body["categories"], annotations)
        entries = {entry["id"]: entry for entry in body["images"]}
        objects = _parse_objects(body["annotations"], categories, entries, file=annotations)
        annotated = [
            _parse_image(entry, images, objects[image_id]) for image_id, entry in entries.items()
        ]
    except KeyError as error:
        raise DataError(f"{annotations} is not in COCO's format: an entry has no {error}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{annotations} is not in COCO's format: {error}") from None
    if len(entries) < len(body["images"]):
        raise DataError(f"{annotations} has two images with the same id")
    if not annotated:
        raise DataError(f"{annotations} has no images")
    if not categories:
        raise DataError(f"{annotations} has no categories")
    _check_files(annotated, annotations, images)
    kept = sum(len(image.objects) for image in annotated)
    return CocoDataset(annotated, categories, dropped=len(body["annotations"]) - kept)


def _read_json(annotations: Path) -> dict[str, Any]:
    """Return the JSON object of a file of annotations, with the three lists it must have."""
    try:
        body = json.loads(annotations.read_bytes())
    except FileNotFoundError:
        raise DataError(f"there is no file of annotations {annotations}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{annotations} cannot be read: {error}") from None
    for key in ("images", "annotations", "categories"):
        if not isinstance(body, dict) or key not in body:
            raise DataError(f'{annotations} is not in COCO\'s format: it has no "{key}"')
    return dict(body)


def _parse_categories(entries: Iterable[Entry], file: Path) -> dict[int, str]:
    """Return the categories' names by id, in the order of ids.

    Users tell classes apart by their names, so the id is appended to names that occur twice.
    """
    names: dict[int, str] = {}
    for entry in entries:
        number = int(entry["id"])
        if number in names:
            raise DataError(f"{file} has two categories with the same id, {number}")
        if not entry.get("name"):
            raise DataError(f'{file}: category {number} has no name: add one, "name": "…"')
        names[number] = str(entry["name"])
    all_names = list(names.values())
    categories = {}
    for number in sorted(names):
        name = names[number]
        is_unique = all_names.count(name) == 1
        categories[number] = name if is_unique else f"{name} ({number})"
    return categories


def _parse_image(entry: Entry, folder: Path, objects: Iterable[ObjectAnnotation]) -> AnnotatedImage:
    return AnnotatedImage(
        id=entry["id"],
        path=folder / entry["file_name"],
        width=int(entry["width"]),
        height=int(entry["height"]),
        objects=tuple(objects),
    )


def _parse_objects(
    annotations: Iterable[Entry],
    categories: Iterable[int],
    images: Mapping[Any, Entry],
    file: Path,
) -> dict[Any, list[ObjectAnnotation]]:
    """Return the objects of each image, by the image's id."""
    labels = {number: label for label, number in enumerate(categories, 1)}
    objects: dict[Any, list[ObjectAnnotation]] = {image_id: [] for image_id in images}
    for annotation in annotations:
        where = f"{file}: annotation {annotation.get('id')}"
        image_id = annotation["image_id"]
        if image_id not in images:
            raise DataError(f"{where} refers to unknown image {image_id}")
        if annotation["category_id"] not in labels:
            raise DataError(f"{where} refers to unknown category {annotation['category_id']}")
        label = labels[annotation["category_id"]]
        parsed = _parse_object(annotation, label, images[image_id], where=where)
        if parsed is not None:
            objects[image_id].append(parsed)
    return objects


def _parse_object(
    annotation: Entry, label: int, image: Entry, where: str
) -> ObjectAnnotation | None:
    """Return the object of an annotation, or None if it has no extent inside its image."""
    width = int(image["width"])
    height = int(image["height"])
    x, y, w, h = map(float, annotation["bbox"])
    if not all(map(math.isfinite, (x, y, w, h))):
        raise DataError(f"{where} has a box that is not finite")
    left = max(x, 0.0)
    top = max(y, 0.0)
    right = min(x + w, float(width))
    bottom = min(y + h, float(height))
    segmentation = _parse_segmentation(annotation, height, width, where=where)
    if right - left < MIN_EXTENT or bottom - top < MIN_EXTENT or not segmentation:
        return None
    try:
        if not has_pixels(segmentation, height, width):
            return None
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    area = annotation.get("area")
    return ObjectAnnotation(
        label=label,
        box=(left, top, right, bottom),
        bbox=(x, y, w, h),
        segmentation=segmentation,
        crowd=bool(annotation.get("iscrowd", 0)),
        area=None if area is None else float(area),
    )


def _parse_segmentation(annotation: Entry, height: int, width: int, where: str) -> Any:
    """Return the segmentation without polygons of fewer than three corners."""
    segmentation = annotation.get("segmentation")
    if not segmentation:
        raise DataError(f"{where} has no segmentation, and Mask R-CNN learns from masks")
    if not isinstance(segmentation, dict):
        return [polygon for polygon in segmentation if len(polygon) >= 6 and len(polygon) % 2 == 0]
    if list(segmentation["size"]) != [height, width]:
        raise DataError(
            f"{where} has a mask of (height, width) = {segmentation['size']}, "
            f"but its image has {[height, width]}"
        )
    return {"counts": segmentation["counts"], "size": [height, width]}


def _check_files(images: Sequence[AnnotatedImage], annotations: Path, folder: Path) -> None:
    """Raise a DataError if image files are missing; only its detail names one of them."""
    missing = [image.path for image in images if not image.path.is_file()]
    if len(missing) == 1:
        raise DataError(
            f"an image of {annotations} is missing; is {folder} the right folder?",
            f"it is {missing[0]}",
        )
    if missing:
        raise DataError(
            f"{len(missing):,} images of {annotations} are missing; is {folder} the right folder?",
            f"the first is {missing[0]}",
        )
