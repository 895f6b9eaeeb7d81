"""Average precision, by hand: what is handed to pycocotools and what comes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedssl.finetune.coco import Coco, Object, Picture
from fedssl.finetune.masks import encode
from fedssl.finetune.measure import Detection, average_precision, convert

pytest.importorskip("pycocotools")

SIDE = 64


def block(x: int, y: int, size: int) -> list[list[int]]:
    return [[x, y, x + size, y, x + size, y + size, x, y + size]]


def annotated(x: int, y: int, size: int, crowd: bool = False, label: int = 1) -> Object:
    box = (float(x), float(y), float(size), float(size))
    return Object(label, (x, y, x + size, y + size), box, block(x, y, size), crowd, None)


def found(x: int, y: int, size: int, score: float, category: int = 7) -> Detection:
    mask = np.zeros((SIDE, SIDE), bool)
    mask[y : y + size, x : x + size] = True
    return Detection(5, category, score, [float(x), float(y), float(size), float(size)], encode(mask))


def coco(*objects: Object) -> Coco:
    return Coco([Picture(5, Path(), SIDE, SIDE, objects)], {7: "square", 90: "circle"}, 0)


def test_torchvisions_output_in_cocos_terms() -> None:
    """Corners (1, 2) and (5, 10) are a width of 4 and a height of 8; label 2 is the second number, 90; of a mask's
    probabilities, those from a half on are inside: down the columns 0, 1, 1, 0, runs of 1, 2 and 1."""
    given = {
        "boxes": torch.tensor([[1.0, 2, 5, 10]]),
        "labels": torch.tensor([2]),
        "scores": torch.tensor([0.75]),
        "masks": torch.tensor([[[[0.1, 0.5], [0.9, 0.49]]]]),
    }
    (one,) = convert(Picture(5, Path(), 2, 2, ()), given, [7, 90])
    assert one[:4] == (5, 90, 0.75, [1, 2, 4, 8])
    assert one.mask == {"counts": b"121", "size": [2, 2]}


def test_a_perfect_detector() -> None:
    """Of one object, whose id must not be 0: pycocotools takes a match with that for none."""
    for figures in average_precision(coco(annotated(4, 4, 20)), [found(4, 4, 20, 0.9)]).values():
        assert figures["AP"] == pytest.approx(100)
        assert figures["by_class"] == {"square": pytest.approx(100), "circle": None}
        assert figures["AP_large"] is None


def test_one_wrong_between_two_right() -> None:
    """Precision is 1 up to a recall of 1/2 and 2/3 from there: of the 101 recalls 0, 0.01 … 1, 51 and 50 of them. So AP
    is (51 + 50 · 2/3) / 101 = 83.4983%, at every threshold, since what is right is right to the pixel."""
    truth = coco(annotated(0, 0, 10), annotated(30, 30, 10))
    figures = average_precision(truth, [found(0, 0, 10, 0.9), found(50, 0, 10, 0.8), found(30, 30, 10, 0.7)])
    for kind in ("boxes", "masks"):
        assert figures[kind]["AP"] == pytest.approx(100 * (51 + 50 * 2 / 3) / 101)
        assert figures[kind]["AR100"] == pytest.approx(100)


def test_half_a_box() -> None:
    """10 × 10 found as 10 × 12 overlaps by 100/144 = 0.694: right at thresholds 0.50, 0.55, 0.60 and 0.65, of ten."""
    figures = average_precision(coco(annotated(0, 0, 10)), [found(0, 0, 12, 0.9)])["boxes"]
    assert (figures["AP50"], figures["AP75"]) == (pytest.approx(100), pytest.approx(0))
    assert figures["AP"] == pytest.approx(40)


def test_boxes_and_masks_are_measured_apart() -> None:
    """The right box with a mask of half of it: 200/400 is just enough at 0.50, and at no other threshold."""
    one = found(0, 0, 20, 0.9)
    mask = np.zeros((SIDE, SIDE), bool)
    mask[:20, :10] = True
    figures = average_precision(coco(annotated(0, 0, 20)), [one._replace(mask=encode(mask))])
    assert figures["boxes"]["AP"] == pytest.approx(100)
    assert figures["masks"]["AP"] == pytest.approx(10)


def test_what_is_found_in_a_crowd_is_forgiven() -> None:
    """The second would be a mistake, and rank before the third, were there no crowd."""
    truth = (annotated(0, 0, 10), annotated(30, 30, 10))
    given = [found(0, 0, 10, 0.9), found(45, 2, 10, 0.8), found(30, 30, 10, 0.7)]
    with_crowd = average_precision(coco(*truth, annotated(40, 0, 24, crowd=True)), given)
    assert with_crowd["boxes"]["AP"] == pytest.approx(100)
    assert with_crowd["masks"]["AP"] == pytest.approx(100)
    assert average_precision(coco(*truth), given)["boxes"]["AP"] < 90


def test_sizes_are_those_of_masks() -> None:
    """Small is below 32² = 1,024 pixels. A mistake with a mask of 900 in a box of 40 × 40 is a small mask's, but a
    medium box's: so it counts among small masks, and among medium boxes."""
    mask = np.zeros((SIDE, SIDE), bool)
    mask[20:50, 20:50] = True
    mistake = Detection(5, 7, 0.95, [15.0, 15.0, 40.0, 40.0], encode(mask))
    figures = average_precision(coco(annotated(0, 0, 10)), [mistake, found(0, 0, 10, 0.9)])
    assert figures["boxes"]["AP_small"] == pytest.approx(100)
    assert figures["masks"]["AP_small"] == pytest.approx(50)


def test_a_detector_that_finds_nothing() -> None:
    for figures in average_precision(coco(annotated(0, 0, 10)), []).values():
        assert figures["AP"] == 0


def test_nothing_to_find() -> None:
    for figures in average_precision(coco(), [found(0, 0, 10, 0.9)]).values():
        assert figures["AP"] is None
        assert figures["by_class"] == {"square": None, "circle": None}


def test_it_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    average_precision(coco(annotated(0, 0, 10)), [])
    assert capsys.readouterr() == ("", "")
