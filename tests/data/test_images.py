import weakref

import pytest
import torch
from error_messages import raises
from pydantic import ValidationError

from fedssl.core.errors import ConfigError, DataError
from fedssl.data import SOURCES, Dataset, Images, PythonImages


def numbered(count: int) -> torch.Tensor:
    """Images (count, 1, 1, 1) whose only pixel is their number."""
    return torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1)


def forbidden() -> torch.Tensor:
    raise AssertionError("labels were loaded")


def test_labels_are_loaded_once_on_first_use():
    calls = []
    images = Images(numbered(3), lambda: calls.append(1) or torch.tensor([2, 1, 0]))
    part = images.select(torch.tensor([2, 0]))
    assert images.labelled
    assert part.labelled
    assert len(part) == 2
    assert calls == []
    assert part.labels.tolist() == [0, 2]
    assert images.labels.tolist() == [2, 1, 0]
    assert calls == [1]
    assert images.labels.dtype == torch.int64


def test_a_label_loader_does_not_keep_the_pixels_alive():
    images = Images(numbered(3), torch.tensor([2, 1, 0]), ("a", "b", "c"))
    pixels = weakref.ref(images.pixels)
    load = images.select(torch.tensor([1])).label_loader
    del images
    assert pixels() is None
    assert load().tolist() == [1]


def test_a_selection_shares_the_pixels_until_they_are_copied():
    images = Images(numbered(5))
    part = images.select(torch.tensor([4, 1, 3])).select(torch.tensor([2, 0]))
    assert part.pixel_rows.pool is images.pixels
    assert part.pixels.flatten().tolist() == [3, 4]
    assert part.image_shape == (1, 1, 1)
    assert [chunk.flatten().tolist() for chunk in part.pixel_rows.chunks(1)] == [[3], [4]]


def test_images_without_labels_raise_on_access():
    images = Images(numbered(2))
    assert not images.labelled
    assert not images.select(torch.tensor([0])).labelled
    with raises(DataError):
        _ = images.labels


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0]), "2 images need as many"),
        (torch.tensor([0.0, 1.0]), "2 images need as many"),
        (torch.tensor([0, -1]), "negative"),
        (torch.tensor([0, 2]), "label 2 is out of range for 2 classes"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, message):
    with pytest.raises(DataError, match=message):
        _ = Images(numbered(2), labels, ("a", "b")).labels


@pytest.mark.parametrize(
    "pixels", [torch.zeros(2, 1, 4, 4), torch.zeros(2, 4, 4, dtype=torch.uint8)]
)
def test_pixels_must_be_bytes_of_four_dimensions(pixels):
    with raises(DataError):
        Images(pixels)


def test_holdout_is_disjoint_repeatable_and_loads_no_labels():
    owners = {"a": torch.arange(0, 6), "b": torch.arange(6, 20)}
    data = Dataset(Images(numbered(20), forbidden), Images(numbered(3)), owners)
    held = PythonImages(holdout=5).apply_holdout(data)
    assert (len(held.train), len(held.test)) == (15, 5)
    train = held.train.pixels.flatten().tolist()
    test = held.test.pixels.flatten().tolist()
    assert sorted(train + test) == list(range(20))
    assert train == sorted(train)
    again = PythonImages(holdout=5).apply_holdout(data)
    assert torch.equal(again.test.pixels, held.test.pixels)
    # An owner keeps the same images under their new numbers.
    assert [train[i] for i in held.owners["a"]] == sorted(set(range(6)) - set(test))
    assert sum(map(len, held.owners.values())) == 15


def test_holdout_selects_labels_with_their_images():
    held = PythonImages(holdout=4).apply_holdout(Dataset(Images(numbered(10), torch.arange(10))))
    assert held.test.labels.tolist() == held.test.pixels.flatten().tolist()
    assert held.train.labels.tolist() == held.train.pixels.flatten().tolist()


def test_holdout_does_not_drop_the_only_labels():
    """Unlabelled images must not replace labelled test images: nothing could be measured."""
    train = Images(numbered(10))
    labelled = Images(numbered(3), torch.arange(3))
    with raises(DataError):
        PythonImages(holdout=4).apply_holdout(Dataset(train, labelled))
    without_labels = Dataset(train, Images(numbered(3)))
    assert len(PythonImages(holdout=4).apply_holdout(without_labels).test) == 4


def test_holdout_must_leave_something():
    data = Dataset(Images(numbered(5)))
    assert PythonImages().apply_holdout(data) is data
    with raises(DataError):
        PythonImages(holdout=5).apply_holdout(data)


@pytest.mark.parametrize(
    "values",
    [
        {"mean": (0.5,)},
        {"std": (0.5,)},
        {"mean": (0.5,), "std": (0.5, 0.5)},
        {"mean": (), "std": ()},
        {"mean": (0.5,), "std": (0.0,)},
        {"holdout": -1},
    ],
)
def test_normalisation_and_holdout_are_validated(values):
    with pytest.raises(ValidationError):
        PythonImages(**values)
    assert PythonImages(mean=(0.5,), std=(0.2,)).mean == (0.5,)


def test_every_source_is_found_by_name():
    names = "cifar10 cifar100 fashion-mini fashion-mnist folder given npz stl10 tiny-imagenet"
    assert set(names.split()) <= set(SOURCES.names())
    with raises(ConfigError):
        _ = SOURCES["cifar-100"]
