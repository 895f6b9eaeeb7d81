"""Mean average precision of boxes and masks by pycocotools: the figures of COCO's evaluation.

Annotations get new ids that start at 1, since pycocotools does not count a match with an annotation
of id 0.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedssl.downstream.object_detection.coco import AnnotatedImage, CocoDataset
from fedssl.downstream.object_detection.loader import prefetch, read_image
from fedssl.downstream.object_detection.masks import area, encode, to_rle

STATS = (
    "AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large",
    "AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large",
)  # fmt: skip
IOU_TYPES = {"boxes": "bbox", "masks": "segm"}
MASK_THRESHOLD = 0.5  # pixels of at least this probability belong to an object
PREFETCHED = 16  # images


class Detection(NamedTuple):
    """One detected object."""

    image: int | str
    category: int  # COCO's id
    score: float
    box: list[float]  # left, top, width, height
    mask: dict[str, Any]  # compressed run lengths


def detect(
    model: nn.Module,
    coco: CocoDataset,
    channels: int,
    *,
    device: torch.device,
    advance: Callable[[int], None],
) -> Iterator[Detection]:
    """Yield all detections, one image at a time, so that padding does not affect results."""
    model.eval()
    categories = list(coco.categories)
    images = prefetch(lambda image: read_image(image, channels), coco.images, PREFETCHED)
    for image, pixels in zip(coco.images, images, strict=True):
        with torch.inference_mode():
            output = model([pixels.to(device)])[0]
        on_cpu = {name: tensor.cpu() for name, tensor in output.items()}
        yield from convert(image, on_cpu, categories)
        advance(1)


def convert(
    image: AnnotatedImage, output: dict[str, Tensor], categories: list[int]
) -> Iterator[Detection]:
    """Yield torchvision's output for one image as COCO's detections.

    Corners become sizes, labels become ids of categories, masks become run lengths.
    """
    corners = output["boxes"].double()
    boxes = torch.cat((corners[:, :2], corners[:, 2:] - corners[:, :2]), 1).tolist()
    labels = output["labels"].tolist()
    scores = output["scores"].tolist()
    masks = (output["masks"][:, 0] >= MASK_THRESHOLD).numpy()
    for box, label, score, mask in zip(boxes, labels, scores, masks, strict=True):
        yield Detection(image.id, categories[label - 1], score, box=box, mask=encode(mask))


def average_precision(
    coco: CocoDataset, detections: Iterable[Detection]
) -> dict[str, dict[str, Any]]:
    """Return COCO's twelve figures in % and AP by category, for boxes and for masks.

    A figure is None if there are no objects that it could be measured on.
    """
    all_detections = list(detections)
    return {kind: _evaluate(coco, all_detections, kind) for kind in IOU_TYPES}


def _evaluate(coco: CocoDataset, detections: list[Detection], kind: str) -> dict[str, Any]:
    """Return the figures for boxes or for masks."""
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        truth = _index_truth(coco)
        results = _index_results(truth, detections, kind)
        evaluation = COCOeval(truth, results, IOU_TYPES[kind])
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    figures: dict[str, Any] = dict(zip(STATS, map(_percent, evaluation.stats), strict=True))
    # Thresholds, recalls, categories; of all sizes and 100 detections per image.
    precision = evaluation.eval["precision"][:, :, :, 0, -1]
    by_class = {}
    for i, category in enumerate(evaluation.params.catIds):
        by_class[coco.categories[category]] = _mean(precision[:, :, i])
    return figures | {"by_class": by_class}


def _mean(precision: Any) -> float | None:
    """Return the mean in %, without the entries of -1 of a category that has no objects."""
    valid = precision[precision > -1]
    return _percent(valid.mean() if valid.size else -1.0)


def _percent(value: float) -> float | None:
    """Return a value in %, or None for -1, pycocotools' missing value."""
    return None if value < 0 else 100 * float(value)


def _index_truth(coco: CocoDataset) -> Any:
    """Return the annotated objects as pycocotools' COCO."""
    from pycocotools.coco import COCO

    categories = list(coco.categories)
    images = []
    annotations: list[dict[str, Any]] = []
    for image in coco.images:
        images.append({"id": image.id, "width": image.width, "height": image.height})
        for annotation in image.objects:
            rle = to_rle(annotation.segmentation, image.height, image.width)
            entry = {
                "id": len(annotations) + 1,
                "image_id": image.id,
                "category_id": categories[annotation.label - 1],
                "bbox": list(annotation.bbox),
                "segmentation": rle,
                "area": area(rle) if annotation.area is None else annotation.area,
                "iscrowd": int(annotation.crowd),
            }
            annotations.append(entry)
    truth = COCO()
    truth.dataset = {
        "images": images,
        "categories": [{"id": number, "name": name} for number, name in coco.categories.items()],
        "annotations": annotations,
    }
    truth.createIndex()
    return truth


def _index_results(truth: Any, detections: list[Detection], kind: str) -> Any:
    """Return detections as pycocotools' COCO, with only boxes or only masks.

    With both, pycocotools would use a box's area as its mask's, so that small, medium and large
    would have different meanings for detections and annotations.
    """
    from pycocotools.coco import COCO

    if not detections:
        return COCO()  # loadRes does not accept an empty list
    entries = []
    for image, category, score, box, mask in detections:
        entry: dict[str, Any] = {"image_id": image, "category_id": category, "score": score}
        if kind == "boxes":
            entry["bbox"] = box
        else:
            entry["segmentation"] = mask
        entries.append(entry)
    return truth.loadRes(entries)
