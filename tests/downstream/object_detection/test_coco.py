"""Annotations in COCO's format: reading, dropping, errors, and the search for files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from error_messages import raises
from PIL import Image
from shapes import CATEGORIES, write_annotations, write_shapes

from fedssl.core.errors import ConfigError, DataError
from fedssl.downstream.object_detection.coco import CocoDataset, read_coco
from fedssl.downstream.object_detection.finetune import FineTuning, _read_datasets
from fedssl.downstream.object_detection.locate import ExplicitPaths, Part, locate
from fedssl.downstream.object_detection.settings import DetectionSettings

SQUARE = [[2, 2, 8, 2, 8, 8, 2, 8]]
GOOD: dict[str, Any] = {
    "id": 5,
    "image_id": 1,
    "category_id": 7,
    "bbox": [2, 2, 6, 6],
    "segmentation": SQUARE,
}
Read = Callable[..., CocoDataset]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """read({…}, {…}): read annotations of an image of 20 × 10 pixels; another of 4 × 4 is empty."""

    def call(*annotations: dict[str, Any]) -> CocoDataset:
        Image.new("RGB", (20, 10)).save(tmp_path / "a.png")
        Image.new("RGB", (4, 4)).save(tmp_path / "b.png")
        images = [{"id": 1, "file_name": "a.png", "width": 20, "height": 10}]
        images += [{"id": 2, "file_name": "b.png", "width": 4, "height": 4}]
        write_annotations(tmp_path / "a.json", images, list(annotations))
        return read_coco(tmp_path / "a.json", tmp_path)

    return call


def test_labels_count_from_one_in_the_order_of_their_numbers(read: Read) -> None:
    """Categories are 3, 7 and 40, so 40 is label 3 and 7 label 2."""
    coco = read(GOOD, GOOD | {"category_id": 40, "iscrowd": 1, "area": 12})
    assert coco.categories == CATEGORIES
    first, second = coco.images[0].objects
    assert (first.label, first.crowd, first.area) == (2, False, None)
    assert (second.label, second.crowd, second.area) == (3, True, 12.0)
    assert coco.images[0].single_objects == [first]
    assert coco.images[1].objects == ()
    assert coco.dropped == 0


def test_boxes_become_corners_inside_the_image(read: Read) -> None:
    """Left 15, top -3, width 10, height 6 in an image of 20 × 10: from (15, 0) to (20, 3)."""
    (annotation,) = read(GOOD | {"bbox": [15, -3, 10, 6]}).images[0].objects
    assert annotation.box == (15, 0, 20, 3)
    assert annotation.bbox == (15, -3, 10, 6)


@pytest.mark.parametrize(
    "change",
    [
        {"bbox": [2, 2, 0, 6]},
        {"bbox": [2, 2, 6, 1e-6]},
        {"bbox": [2, 2, -4, 6]},
        {"bbox": [20, 2, 6, 6]},  # outside the image
        {"segmentation": [[2, 2, 8, 2]]},  # a line
        {"segmentation": [[2, 2, 8, 2, 8]]},
        {"segmentation": [[40, 40, 48, 40, 48, 48]]},  # outside the image, unlike its box
        {"segmentation": {"counts": [200], "size": [10, 20]}},  # no pixel inside
    ],
)
def test_objects_without_extent_are_dropped_and_counted(read: Read, change: dict[str, Any]) -> None:
    coco = read(GOOD, GOOD | change)
    assert len(coco.images[0].objects) == 1
    assert coco.dropped == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segmentation": []}, "annotation 5 has no segmentation"),
        ({"segmentation": None}, "annotation 5 has no segmentation"),
        (
            {"segmentation": {"counts": [200], "size": [20, 10]}},
            r"= \[20, 10\], but its image has \[10, 20\]",
        ),
        (
            {"segmentation": {"counts": [100, 300], "size": [10, 20]}},
            "annotation 5: .* run lengths cover 400 pixels, but its image has 200",
        ),
        (
            {"segmentation": {"counts": [-5, 205], "size": [10, 20]}},
            "annotation 5: .* neither polygons nor run",
        ),
        (
            {"segmentation": {"counts": None, "size": [10, 20]}},
            "annotation 5: .* neither polygons nor run lengths",
        ),
        ({"segmentation": {"counts": [200], "size": []}}, r"\(height, width\) = \[\]"),
        (
            {"segmentation": [["a", 2, 8, 2, 8, 8]]},
            "annotation 5: .* neither polygons nor run lengths",
        ),
        ({"bbox": [2, 2, float("nan"), 6]}, "annotation 5 has a box that is not finite"),
        ({"category_id": 8}, "annotation 5 refers to unknown category 8"),
        ({"image_id": 3}, "annotation 5 refers to unknown image 3"),
        ({"bbox": [1, 2, 3]}, "not enough values"),
    ],
)
def test_malformed_annotations_are_rejected(
    read: Read, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(GOOD | change)


def test_an_annotation_without_a_box_is_rejected(read: Read) -> None:
    with raises(DataError):
        read({key: value for key, value in GOOD.items() if key != "bbox"})


def test_missing_image_files_are_counted(tmp_path: Path) -> None:
    """The first is named only in the detail, which is for a terminal and not for a log."""
    write_shapes(tmp_path, "train", 4, size=32)
    (tmp_path / "train" / "1.png").unlink()
    (tmp_path / "train" / "3.png").unlink()
    file = tmp_path / "annotations" / "instances_train.json"
    right = f"missing; is {tmp_path / 'train'} the right folder?"
    with pytest.raises(DataError, match=rf"^2 images of {file} are {re.escape(right)}$") as raised:
        read_coco(file, tmp_path / "train")
    assert raised.value.detail == f"the first is {tmp_path / 'train' / '1.png'}"
    shutil.copy(tmp_path / "train" / "2.png", tmp_path / "train" / "1.png")
    with pytest.raises(DataError, match=rf"^an image of {file} is {re.escape(right)}$") as raised:
        read_coco(file, tmp_path / "train")
    assert raised.value.detail == f"it is {tmp_path / 'train' / '3.png'}"
    with raises(DataError):
        read_coco(tmp_path / "no.json", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", 'it has no "images"'),
        ('{"images": [], "annotations": []}', 'it has no "categories"'),
        ('{"images": [], "annotations": [], "categories": []}', "has no images"),
        (
            '{"images": [{"id": 1, "file_name": "a", "width": 1, "height": 1}, '
            '{"id": 1, "file_name": "b", "width": 1, "height": 1}], '
            '"annotations": [], "categories": []}',
            "two images with the same id",
        ),
    ],
)
def test_files_that_are_no_annotations(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=message):
        read_coco(tmp_path / "a.json", tmp_path)


def categories(tmp_path: Path, *entries: dict[str, Any]) -> dict[int, str]:
    """Read these categories from a file with one image and no objects."""
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    images = [{"id": 1, "file_name": "a.png", "width": 4, "height": 4}]
    (tmp_path / "a.json").write_text(
        json.dumps({"images": images, "annotations": [], "categories": entries})
    )
    return read_coco(tmp_path / "a.json", tmp_path).categories


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"id": 7}, r"a\.json: category 7 has no name: add one"),
        ({"id": 7, "name": ""}, "category 7 has no name"),
        ({"id": 7, "name": None}, "category 7 has no name"),
        ({"name": "square"}, "an entry has no 'id'"),
        ({"id": 3, "name": "square"}, "two categories with the same id, 3"),
    ],
)
def test_ambiguous_categories_are_rejected(
    tmp_path: Path, entry: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        categories(tmp_path, {"id": 3, "name": "circle"}, entry)


def test_categories_of_one_name_get_their_ids_as_suffix(tmp_path: Path) -> None:
    entries = [{"id": 1, "name": "car"}, {"id": 0, "name": "car"}, {"id": 2, "name": "bus"}]
    assert categories(tmp_path, *entries) == {0: "car (0)", 1: "car (1)", 2: "bus"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({7: "star"}, '7 is "square" in the first and "star" in the second'),
        ({7: None}, '7 is "square" in the first and missing in the second'),
        ({99: "x"}, '99 is missing in the first and "x" in the second'),
    ],
)
def test_both_parts_must_have_the_same_categories(
    tmp_path: Path, other: dict[int, str | None], message: str
) -> None:
    """By id and by name: a detector that calls squares 7 is wrong about stars with that id."""
    for part in ("train", "val"):
        write_shapes(tmp_path, part, 1, size=32)
    train = locate("train", tmp_path, ExplicitPaths())
    val = locate("val", tmp_path, ExplicitPaths())
    body = json.loads(val.annotations.read_text())
    changed = {number: name for number, name in (CATEGORIES | other).items() if name is not None}
    entries = [{"id": number, "name": name} for number, name in changed.items()]
    val.annotations.write_text(json.dumps(body | {"categories": entries, "annotations": []}))
    task = FineTuning(None, train, val, DetectionSettings())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        _read_datasets(task, print)


def test_cocos_own_layout(tmp_path: Path) -> None:
    for name in ("train2017", "val2017"):
        (tmp_path / name).mkdir()
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / "annotations" / f"instances_{name}.json").write_text("{}")
        (tmp_path / "annotations" / f"captions_{name}.json").write_text("{}")
        part = locate(name.removesuffix("2017"), tmp_path, ExplicitPaths())
        assert part == Part(tmp_path / "annotations" / f"instances_{name}.json", tmp_path / name)


def test_images_in_a_folder_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "instances_val.json").write_text("{}")
    (tmp_path / "images" / "val").mkdir(parents=True)
    assert locate("val", tmp_path, ExplicitPaths()).images == tmp_path / "images" / "val"


def test_annotations_next_to_the_images(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "_annotations.coco.json").write_text("{}")
    assert locate("val", tmp_path, ExplicitPaths()) == Part(
        tmp_path / "valid" / "_annotations.coco.json", tmp_path / "valid"
    )


def test_explicit_paths_have_priority(tmp_path: Path) -> None:
    write_shapes(tmp_path, "train", 1, size=32)
    other = tmp_path / "other"
    assert locate("train", tmp_path, ExplicitPaths(images=other)).images == other
    assert locate("train", tmp_path, ExplicitPaths(annotations=other)) == Part(
        other, tmp_path / "train"
    )
    assert locate("val", None, ExplicitPaths(other, tmp_path)) == Part(other, tmp_path)


def test_missing_parts_are_errors(tmp_path: Path) -> None:
    write_shapes(tmp_path, "train", 1, size=32)
    with raises(ConfigError):
        locate("val", tmp_path, ExplicitPaths())
    with raises(ConfigError):
        locate("val", None, ExplicitPaths(images=tmp_path))
    with raises(ConfigError):
        locate("val", tmp_path / "no", ExplicitPaths())
    write_shapes(tmp_path, "train2", 1, size=32)
    with raises(ConfigError):
        locate("train", tmp_path, ExplicitPaths())


def test_the_shapes_are_as_annotated(tmp_path: Path) -> None:
    """The data set of the tests has every category, and both kinds of segmentation."""
    write_shapes(tmp_path, "train", 12, size=64)
    body = json.loads((tmp_path / "annotations" / "instances_train.json").read_text())
    assert {annotation["category_id"] for annotation in body["annotations"]} == set(CATEGORIES)
    assert {type(annotation["segmentation"]) for annotation in body["annotations"]} == {list, dict}
