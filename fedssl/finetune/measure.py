"""Mean average precision of boxes and of masks, by pycocotools: the figures COCO's own evaluation prints.

Two things its helper for results would do otherwise: the area of a found mask is the mask's, not its box's, so that
small, medium and large mean the same for what is found and what is there; and ids begin at 1, since a match with an
annotation of id 0 counts as none.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedssl.finetune.batches import ahead, read_image
from fedssl.finetune.coco import Coco, Picture
from fedssl.finetune.masks import area, encode, to_rle

STATS = (
    "AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large",
    "AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large",
)  # fmt: skip
KINDS = {"boxes": "bbox", "masks": "segm"}
INSIDE = 0.5  # the probability from which a pixel belongs to an object
AHEAD = 16


class Detection(NamedTuple):
    """What was found on one image."""

    image: int | str
    category: int  # COCO's number
    score: float
    box: list[float]  # left, top, width, height
    mask: dict[str, Any]  # compressed run lengths


def detect(
    model: nn.Module, coco: Coco, channels: int, device: torch.device, advance: Callable[[int], None]
) -> Iterator[Detection]:
    """Everything a detector finds. One image at a time: nobody's result depends on whom it was padded with."""
    model.eval()
    numbers = list(coco.categories)
    images = ahead(lambda picture: read_image(picture, channels), coco.pictures, AHEAD)
    for picture, image in zip(coco.pictures, images, strict=True):
        with torch.inference_mode():
            found = model([image.to(device)])[0]
        yield from convert(picture, {name: tensor.cpu() for name, tensor in found.items()}, numbers)
        advance(1)


def convert(picture: Picture, found: dict[str, Tensor], numbers: list[int]) -> Iterator[Detection]:
    """torchvision's output for one image in COCO's terms: corners to sizes, labels to numbers, masks to run lengths."""
    corners = found["boxes"].double()
    boxes = torch.cat((corners[:, :2], corners[:, 2:] - corners[:, :2]), 1).tolist()
    inside = (found["masks"][:, 0] >= INSIDE).numpy()
    for box, label, score, mask in zip(boxes, found["labels"].tolist(), found["scores"].tolist(), inside, strict=True):
        yield Detection(picture.id, numbers[label - 1], score, box, encode(mask))


def average_precision(coco: Coco, detections: Iterable[Detection]) -> dict[str, dict[str, Any]]:
    """COCO's twelve figures in %, for boxes and for masks, and AP by category; None where there is nothing to find."""
    from pycocotools.cocoeval import COCOeval

    found, result = list(detections), {}
    for kind, name in KINDS.items():
        with contextlib.redirect_stdout(io.StringIO()):  # it talks
            evaluation = COCOeval(_index(coco, _truth(coco)), _index(coco, _found(found, kind)), name)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        figures: dict[str, Any] = dict(zip(STATS, map(_percent, evaluation.stats), strict=True))
        precision = evaluation.eval["precision"][:, :, :, 0, -1]  # thresholds, recalls, categories: all sizes, 100 each
        columns = zip(evaluation.params.catIds, precision.transpose(2, 0, 1), strict=True)
        result[kind] = figures | {"by_class": {coco.categories[number]: _mean(each) for number, each in columns}}
    return result


def _mean(precision: Any) -> float | None:
    """Of the places that count: those of a category that is not there are -1."""
    known = precision[precision > -1]
    return _percent(known.mean() if known.size else -1.0)


def _percent(value: float) -> float | None:
    return None if value < 0 else 100 * float(value)


def _index(coco: Coco, annotations: list[dict[str, Any]]) -> Any:
    """pycocotools' view of annotations, or of what was found."""
    from pycocotools.coco import COCO

    index = COCO()
    index.dataset = {
        "images": [{"id": picture.id, "width": picture.width, "height": picture.height} for picture in coco.pictures],
        "categories": [{"id": number, "name": name} for number, name in coco.categories.items()],
        "annotations": annotations,
    }
    index.createIndex()
    return index


def _truth(coco: Coco) -> list[dict[str, Any]]:
    numbers = list(coco.categories)
    annotations: list[dict[str, Any]] = []
    for picture in coco.pictures:
        for one in picture.objects:
            rle = to_rle(one.segmentation, picture.height, picture.width)
            annotation = {
                "id": len(annotations) + 1,
                "image_id": picture.id,
                "category_id": numbers[one.label - 1],
                "bbox": list(one.given),
                "segmentation": rle,
                "area": one.area if one.area is not None else area(rle),
                "iscrowd": int(one.crowd),
            }
            annotations.append(annotation)
    return annotations


def _found(detections: list[Detection], kind: str) -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "image_id": one.image,
            "category_id": one.category,
            "bbox": one.box,
            "segmentation": one.mask,
            "area": one.box[2] * one.box[3] if kind == "boxes" else area(one.mask),
            "iscrowd": 0,
            "score": one.score,
        }
        for i, one in enumerate(detections, 1)
    ]
