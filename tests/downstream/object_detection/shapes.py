"""Circles, squares and triangles on noise in COCO's format: a data set that is learned in a minute.

Circles have run lengths as segmentation, compressed in every other image; squares and triangles
have polygons. The ids of categories have gaps, as COCO's have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from fedssl.downstream.object_detection.locate import ExplicitPaths, Part, locate

CATEGORIES = {3: "circle", 7: "square", 40: "triangle"}
COLOURS = {3: (230, 159, 0), 7: (86, 180, 233), 40: (0, 158, 115)}


def write_shapes(folder: Path, split: str, count: int, size: int = 96, seed: int = 0) -> None:
    """Write `count` images with one or two shapes each, and their annotations.

    Files are folder/SPLIT/*.png and folder/annotations/instances_SPLIT.json.
    """
    draw = np.random.default_rng(seed)
    (folder / split).mkdir(parents=True)
    (folder / "annotations").mkdir(exist_ok=True)
    images = []
    annotations: list[dict[str, Any]] = []
    for number in range(count):
        picture = Image.fromarray(draw.integers(0, 60, (size, size, 3), dtype=np.uint8))
        halves = [0, 1] if draw.random() < 0.5 else [int(draw.integers(2))]
        for half in halves:
            category = int(draw.choice(list(CATEGORIES)))
            radius = int(draw.integers(size // 8, size // 5))
            x = half * size // 2 + size // 4
            y = int(draw.integers(radius + 1, size - radius - 1))
            annotation = shape(picture, category, x, y, radius, compressed=number % 2 == 0)
            annotations.append(
                annotation | {"id": len(annotations), "image_id": number + 100, "iscrowd": 0}
            )
        picture.save(folder / split / f"{number}.png")
        images.append(
            {"id": number + 100, "file_name": f"{number}.png", "width": size, "height": size}
        )
    write_annotations(folder / "annotations" / f"instances_{split}.json", images, annotations)


def parts(folder: Path) -> tuple[Part, Part]:
    """Return the train and val parts of a folder."""
    return locate("train", folder, ExplicitPaths()), locate("val", folder, ExplicitPaths())


def write_annotations(
    file: Path, images: list[dict[str, Any]], annotations: list[dict[str, Any]]
) -> None:
    categories = [{"id": number, "name": name} for number, name in CATEGORIES.items()]
    file.write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories})
    )


def shape(
    picture: Image.Image, category: int, x: int, y: int, radius: int, compressed: bool
) -> dict[str, Any]:
    """Draw a shape and return its annotation."""
    colour = COLOURS[category]
    box = [x - radius, y - radius, 2 * radius, 2 * radius]
    if CATEGORIES[category] == "circle":
        rows, columns = np.ogrid[: picture.height, : picture.width]
        inside = (columns + 0.5 - x) ** 2 + (rows + 0.5 - y) ** 2 <= radius**2
        picture.paste(colour, mask=Image.fromarray(inside.astype(np.uint8) * 255))
        return {
            "category_id": category,
            "bbox": box,
            "segmentation": run_lengths(inside, compressed),
        }
    left = x - radius
    top = y - radius
    right = x + radius
    bottom = y + radius
    corners = [x, top, right, bottom, left, bottom]
    if CATEGORIES[category] == "square":
        corners = [left, top, right, top, right, bottom, left, bottom]
    points = list(zip(corners[::2], corners[1::2], strict=True))
    ImageDraw.Draw(picture).polygon(points, fill=colour)
    return {"category_id": category, "bbox": box, "segmentation": [corners]}


def run_lengths(inside: npt.NDArray[np.bool_], compressed: bool) -> dict[str, Any]:
    """Return the runs down the columns, the first of zeros: a slow but plain loop."""
    counts = [0]
    value = False
    for pixel in inside.T.reshape(-1).tolist():
        if pixel != value:
            counts.append(0)
            value = pixel
        counts[-1] += 1
    height, width = inside.shape
    return {"counts": _text(counts) if compressed else counts, "size": [height, width]}


def _text(counts: list[int]) -> str:
    """Return COCO's compression of run lengths.

    From the third on it has differences to the last but one, in groups of five bits, lowest first.
    """
    text = ""
    for i, count in enumerate(counts):
        rest = count - counts[i - 2] if i > 2 else count
        while True:
            bits = rest & 31
            rest >>= 5
            done = rest == (-1 if bits & 16 else 0)
            text += chr(48 + bits + (0 if done else 32))
            if done:
                break
    return text
