"""Samples and batches of a step: pixels, masks, mirroring, and the order of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import raises
from PIL import Image
from shapes import run_lengths, write_shapes

from fedssl.core.errors import DataError
from fedssl.downstream.object_detection.coco import AnnotatedImage, ObjectAnnotation, read_coco
from fedssl.downstream.object_detection.loader import (
    Batches,
    load_sample,
    mirror,
    prefetch,
    read_image,
)
from fedssl.downstream.object_detection.masks import area, encode, rasterise, to_rle

pytest.importorskip("pycocotools")

# Two columns of three pixels: down the first, then down the second.
MASK = np.array([[0, 1], [1, 1], [0, 0]], bool)


def test_run_lengths_by_hand() -> None:
    """Down the columns the pixels are 0 1 0, 1 1 0: runs of 1, 1, 1, 2, 1, the first of zeros.
    Compressed, a number n below 16 is the character 48 + n, and from the fourth on differences to
    the last but one are written: 2 - 1 = 1 and 1 - 1 = 0.
    """
    assert run_lengths(MASK, compressed=False) == {"counts": [1, 1, 1, 2, 1], "size": [3, 2]}
    assert encode(MASK) == {"counts": b"11110", "size": [3, 2]}
    assert area(encode(MASK)) == 3


@pytest.mark.parametrize("compressed", [False, True])
def test_masks_of_run_lengths(compressed: bool) -> None:
    """A disc of 40 pixels has runs of more than 15, whose compression takes two characters."""
    rows, columns = np.ogrid[:60, :50]
    inside = (rows - 30) ** 2 + (columns - 22) ** 2 < 400
    for mask in (MASK, inside):
        segmentation = run_lengths(mask, compressed)
        assert (rasterise(segmentation, *mask.shape) == mask).all()
        assert encode(mask)["counts"].decode() == run_lengths(mask, compressed=True)["counts"]


def test_masks_of_polygons() -> None:
    """A rectangle from (1, 1) to (4, 3) covers columns 1 to 3 and rows 1 and 2; then two."""
    mask = rasterise([[1, 1, 4, 1, 4, 3, 1, 3]], 5, 6)
    assert (mask.shape, mask.dtype) == ((5, 6), np.uint8)
    assert mask.sum() == 6
    assert mask[1:3, 1:4].all()
    both = rasterise([[1, 1, 4, 1, 4, 3, 1, 3], [0, 4, 2, 4, 2, 5, 0, 5]], 5, 6)
    assert both.sum() == 8
    assert both[4, :2].all()


def test_a_malformed_segmentation_is_rejected() -> None:
    with raises(DataError):
        to_rle([["a"] * 6], 5, 6)


def annotated_image(
    path: Path, size: tuple[int, int], *objects: ObjectAnnotation
) -> AnnotatedImage:
    width, height = size
    return AnnotatedImage(1, path, width, height, objects)


def an_object(label: int = 1, crowd: bool = False) -> ObjectAnnotation:
    return ObjectAnnotation(
        label, (1.0, 0.0, 3.0, 2.0), (1.0, 0.0, 2.0, 2.0), [[1, 0, 3, 0, 3, 2, 1, 2]], crowd, None
    )


@pytest.fixture
def blank(tmp_path: Path) -> Path:
    Image.new("RGB", (8, 4), (255, 0, 51)).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def test_a_sample(blank: Path) -> None:
    """Two objects and a crowd, which is not trained on. 51 / 255 = 0.2."""
    sample = load_sample(
        annotated_image(blank, (8, 4), an_object(2), an_object(crowd=True), an_object(1)), 3
    )
    assert sample.image.shape == (3, 4, 8)
    torch.testing.assert_close(sample.image[:, 0, 0], torch.tensor([1.0, 0.0, 0.2]))
    assert sample.target["labels"].tolist() == [2, 1]
    assert sample.target["boxes"].tolist() == [[1, 0, 3, 2]] * 2
    assert sample.target["masks"].shape == (2, 4, 8)
    assert sample.target["masks"][0].nonzero().tolist() == [[0, 1], [0, 2], [1, 1], [1, 2]]


def test_a_sample_without_objects(blank: Path) -> None:
    target = load_sample(annotated_image(blank, (8, 4)), 3).target
    assert {name: tuple(value.shape) for name, value in target.items()} == {
        "boxes": (0, 4), "labels": (0,), "masks": (0, 4, 8)
    }  # fmt: skip


def test_a_mirrored_sample(blank: Path) -> None:
    """The image is eight wide: columns 1 to 3 become 5 to 7. Mirroring twice restores it."""
    sample = load_sample(annotated_image(blank, (8, 4), an_object()), 3)
    sample.image[0, 0, 0] = 0.5
    mirrored = mirror(sample)
    assert mirrored.target["boxes"].tolist() == [[5, 0, 7, 2]]
    assert mirrored.target["masks"][0].nonzero().tolist() == [[0, 5], [0, 6], [1, 5], [1, 6]]
    assert mirrored.image[0, 0, 7] == 0.5
    again = mirror(mirrored)
    assert torch.equal(again.image, sample.image)
    assert all(torch.equal(again.target[key], value) for key, value in sample.target.items())


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "I;16"])
def test_images_of_any_mode(tmp_path: Path, mode: str) -> None:
    """Grey, with transparency, with a palette: three channels or one, as the backbone needs."""
    Image.new(mode, (8, 4)).save(tmp_path / "a.png")
    for channels in (1, 3):
        assert read_image(annotated_image(tmp_path / "a.png", (8, 4)), channels).shape == (
            channels,
            4,
            8,
        )


def test_images_with_an_exif_rotation(tmp_path: Path) -> None:
    """EXIF 6 is a clockwise rotation. It is applied if the image is annotated upright (4 wide), but
    not if it is annotated as stored.
    """
    stored = Image.new("L", (8, 4))
    stored.putpixel((0, 0), 255)
    exif = Image.Exif()
    exif[0x0112] = 6
    stored.save(tmp_path / "a.png", exif=exif)
    upright = read_image(annotated_image(tmp_path / "a.png", (4, 8)), 1)
    assert upright.nonzero().tolist() == [[0, 0, 3]]
    assert read_image(annotated_image(tmp_path / "a.png", (8, 4)), 1).nonzero().tolist() == [
        [0, 0, 0]
    ]
    with raises(DataError):
        read_image(annotated_image(tmp_path / "a.png", (9, 4)), 1)


def test_a_damaged_image(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    with raises(DataError) as raised:
        read_image(annotated_image(tmp_path / "a.png", (8, 4)), 3)
    # Only the detail, which is shown on a terminal and never logged, has the name.
    assert raised.value.detail == f"it is {tmp_path / 'a.png'}"


def batches(wide: int, tall: int, batch: int, **more: Any) -> Batches:
    images = [AnnotatedImage(i, Path(), 2, 1, ()) for i in range(wide)]
    images += [AnnotatedImage(wide + i, Path(), 1, 2, ()) for i in range(tall)]
    return Batches(images, batch, 3, **{"flip": True, "seed": 0} | more)


def test_every_image_once_an_epoch_and_orientations_apart() -> None:
    """Nine wide and five tall ones in batches of four: two wide, one tall; the rest, 1 + 1, is left
    out.
    """
    loader = batches(9, 5, 4)
    left_out = []
    for epoch in range(4):
        indices = [loader.indices(3 * epoch + i) for i in range(3)]
        all_wide = [{index < 9 for index in batch} == {True} for batch in indices]
        assert sorted(all_wide) == [False, True, True]
        used = {index for batch in indices for index in batch}
        assert len(used) == 12
        left_out.append(frozenset(range(14)) - used)
    assert len(set(left_out)) > 1


def test_what_is_left_over_is_mixed() -> None:
    """Six wide and six tall in batches of four: a batch of each, and one of two and two."""
    indices = [batches(6, 6, 4).indices(i) for i in range(3)]
    assert sorted(sum(index < 6 for index in batch) for batch in indices) == [0, 2, 4]


def test_fewer_images_than_a_batch() -> None:
    loader = batches(3, 2, 16)
    assert loader.batch == 5
    assert sorted(loader.indices(7)) == [0, 1, 2, 3, 4]


def test_batches_depend_on_seed_and_iteration_alone() -> None:
    one = batches(20, 0, 4)
    other = batches(20, 0, 4)
    assert [one.indices(i) for i in (12, 3)] == [other.indices(i) for i in (3, 12)][::-1]
    assert one._jobs(8) == other._jobs(8)
    assert [one.indices(i) for i in range(5)] != [
        batches(20, 0, 4, seed=1).indices(i) for i in range(5)
    ]


def test_half_of_the_images_are_mirrored() -> None:
    drawn = [mirrored for i in range(100) for _, mirrored in batches(20, 0, 4)._jobs(i)]
    assert 150 < sum(drawn) < 250
    assert not any(
        mirrored for i in range(100) for _, mirrored in batches(20, 0, 4, flip=False)._jobs(i)
    )


def test_samples_come_in_their_order(tmp_path: Path) -> None:
    write_shapes(tmp_path, "train", 5, size=32)
    coco = read_coco(tmp_path / "annotations" / "instances_train.json", tmp_path / "train")
    loader = Batches(coco.images, 2, 3, flip=True, seed=0)
    for iteration, samples in enumerate(loader.samples(3, 6), 3):
        expected = [
            load_sample(coco.images[index], 3, mirrored)
            for index, mirrored in loader._jobs(iteration)
        ]
        assert all(torch.equal(a.image, b.image) for a, b in zip(samples, expected, strict=True))
    assert iteration == 5


def test_prefetching_has_a_limit_and_raises_errors() -> None:
    started: list[int] = []

    def work(number: int) -> int:
        started.append(number)
        return 1 // (number - 6)

    results = prefetch(work, range(100), 3)
    assert [next(results) for _ in range(3)] == [-1, -1, -1]
    assert max(started) <= 5
    with pytest.raises(ZeroDivisionError):
        list(results)
