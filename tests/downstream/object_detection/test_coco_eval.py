"""Average precision, computed by hand, and the conversion of torchvision's output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedssl.downstream.object_detection.coco import AnnotatedImage, CocoDataset, ObjectAnnotation
from fedssl.downstream.object_detection.coco_eval import Detection, average_precision, convert
from fedssl.downstream.object_detection.masks import encode

pytest.importorskip("pycocotools")

SIDE = 64


def block(x: int, y: int, size: int) -> list[list[int]]:
    return [[x, y, x + size, y, x + size, y + size, x, y + size]]


def annotated(x: int, y: int, size: int, crowd: bool = False, label: int = 1) -> ObjectAnnotation:
    box = (float(x), float(y), float(size), float(size))
    corners = (x, y, x + size, y + size)
    return ObjectAnnotation(label, corners, box, block(x, y, size), crowd, None)


def detected(x: int, y: int, size: int, score: float, category: int = 7) -> Detection:
    mask = np.zeros((SIDE, SIDE), bool)
    mask[y : y + size, x : x + size] = True
    return Detection(
        5, category, score, [float(x), float(y), float(size), float(size)], encode(mask)
    )


def coco(*objects: ObjectAnnotation) -> CocoDataset:
    image = AnnotatedImage(5, Path(), SIDE, SIDE, objects)
    return CocoDataset([image], {7: "square", 90: "circle"}, dropped=0)


def test_torchvisions_output_in_cocos_terms() -> None:
    """Corners (1, 2) and (5, 10) are a width of 4 and a height of 8; label 2 is the second id, 90;
    probabilities of at least a half are inside: down the columns 0, 1, 1, 0, runs of 1, 2 and 1.
    """
    output = {
        "boxes": torch.tensor([[1.0, 2, 5, 10]]),
        "labels": torch.tensor([2]),
        "scores": torch.tensor([0.75]),
        "masks": torch.tensor([[[[0.1, 0.5], [0.9, 0.49]]]]),
    }
    (detection,) = convert(AnnotatedImage(5, Path(), 2, 2, ()), output, [7, 90])
    assert detection[:4] == (5, 90, 0.75, [1, 2, 4, 8])
    assert detection.mask == {"counts": b"121", "size": [2, 2]}


def test_a_perfect_detector() -> None:
    """Of one object, whose id must not be 0: pycocotools ignores a match with id 0."""
    for figures in average_precision(coco(annotated(4, 4, 20)), [detected(4, 4, 20, 0.9)]).values():
        assert figures["AP"] == pytest.approx(100)
        assert figures["by_class"] == {"square": pytest.approx(100), "circle": None}
        assert figures["AP_large"] is None


def test_one_wrong_between_two_right() -> None:
    """Precision is 1 up to a recall of 1/2 and 2/3 from there: of the 101 recalls 0, 0.01 … 1, 51
    and 50 of them. So AP is (51 + 50 · 2/3) / 101 = 83.4983%, at every threshold, since correct
    detections are exact to the pixel.
    """
    truth = coco(annotated(0, 0, 10), annotated(30, 30, 10))
    figures = average_precision(
        truth, [detected(0, 0, 10, 0.9), detected(50, 0, 10, 0.8), detected(30, 30, 10, 0.7)]
    )
    for kind in ("boxes", "masks"):
        assert figures[kind]["AP"] == pytest.approx(100 * (51 + 50 * 2 / 3) / 101)
        assert figures[kind]["AR100"] == pytest.approx(100)


def test_half_a_box() -> None:
    """A 10 × 10 object detected as 12 × 12 overlaps by 100/144 = 0.694: correct at thresholds 0.50,
    0.55, 0.60 and 0.65, of ten.
    """
    figures = average_precision(coco(annotated(0, 0, 10)), [detected(0, 0, 12, 0.9)])["boxes"]
    assert (figures["AP50"], figures["AP75"]) == (pytest.approx(100), pytest.approx(0))
    assert figures["AP"] == pytest.approx(40)


def test_boxes_and_masks_are_measured_apart() -> None:
    """The right box with a mask of half of it: 200/400 is just enough at 0.50, and at no other
    threshold.
    """
    detection = detected(0, 0, 20, 0.9)
    mask = np.zeros((SIDE, SIDE), bool)
    mask[:20, :10] = True
    figures = average_precision(coco(annotated(0, 0, 20)), [detection._replace(mask=encode(mask))])
    assert figures["boxes"]["AP"] == pytest.approx(100)
    assert figures["masks"]["AP"] == pytest.approx(10)


def test_detections_in_a_crowd_are_not_errors() -> None:
    """Without the crowd, the second would be a mistake, and rank before the third."""
    truth = (annotated(0, 0, 10), annotated(30, 30, 10))
    detections = [detected(0, 0, 10, 0.9), detected(45, 2, 10, 0.8), detected(30, 30, 10, 0.7)]
    with_crowd = average_precision(coco(*truth, annotated(40, 0, 24, crowd=True)), detections)
    assert with_crowd["boxes"]["AP"] == pytest.approx(100)
    assert with_crowd["masks"]["AP"] == pytest.approx(100)
    assert average_precision(coco(*truth), detections)["boxes"]["AP"] < 90


def test_sizes_are_those_of_masks() -> None:
    """Small is below 32² = 1,024 pixels. A mistake with a mask of 900 in a box of 40 × 40 is a
    small mask, but a medium box: so it counts among small masks, and among medium boxes.
    """
    mask = np.zeros((SIDE, SIDE), bool)
    mask[20:50, 20:50] = True
    mistake = Detection(5, 7, 0.95, [15.0, 15.0, 40.0, 40.0], encode(mask))
    figures = average_precision(coco(annotated(0, 0, 10)), [mistake, detected(0, 0, 10, 0.9)])
    assert figures["boxes"]["AP_small"] == pytest.approx(100)
    assert figures["masks"]["AP_small"] == pytest.approx(50)


def test_a_detector_that_finds_nothing() -> None:
    for figures in average_precision(coco(annotated(0, 0, 10)), []).values():
        assert figures["AP"] == 0


def test_nothing_to_find() -> None:
    for figures in average_precision(coco(), [detected(0, 0, 10, 0.9)]).values():
        assert figures["AP"] is None
        assert figures["by_class"] == {"square": None, "circle": None}


def test_it_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    average_precision(coco(annotated(0, 0, 10)), [])
    assert capsys.readouterr() == ("", "")
