"""Values that a report computes from images: neighbours, agreement, and owners of classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from factories import random_pixels

from fedssl.data import Images
from fedssl.pages.report.evaluation_images import (
    FeatureMap,
    ImageFacts,
    Partition,
    _nearest,
    _positions,
    class_names,
    owner_of_classes,
)
from fedssl.pages.report.image_parts import partition_part
from fedssl.pages.report.training import Training


def test_an_image_is_not_its_own_neighbour() -> None:
    """On a circle at 0°, 10°, 30° and 180°."""
    angles = np.deg2rad([0.0, 10.0, 30.0, 180.0])
    nearest = _nearest(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    assert nearest.tolist() == [[1, 2, 3], [0, 2, 3], [1, 0, 3], [2, 1, 0]]


def test_positions_fill_the_longer_side_of_a_map() -> None:
    pytest.importorskip("sklearn")
    features = np.random.default_rng(0).random((40, 3), dtype=np.float32)
    positions = _positions(features)
    assert np.ptp(positions, axis=0).max() == 1000
    assert positions.min() >= 0
    middle = positions.min(0) + positions.max(0)
    assert np.abs(middle - 1000).max() <= 1  # rounded


def test_features_that_are_all_zero_have_positions() -> None:
    pytest.importorskip("sklearn")
    positions = _positions(np.zeros((8, 4), dtype=np.float32))
    assert positions.shape == (8, 2)
    assert set(positions.ravel().tolist()) == {500}


def test_agreement_is_the_share_of_neighbours_of_the_same_class() -> None:
    """Of six neighbours, those of images 0 and 1 are of class 0 three times out of four."""
    labels = np.array([0, 0, 1])
    before = np.array([[1, 2], [0, 0], [0, 1]])
    after = np.array([[1, 1], [0, 0], [2, 2]])
    images = Images(random_pixels(3), torch.tensor([0, 0, 1]))
    features = FeatureMap(images, labels, (), "global", 1, None, (before, after), None)
    assert features.agreement(0) == 50.0
    assert features.agreement(1) == 100.0
    assert features.queries() == [0, 2]


def _partition(counts: list[list[int]]) -> Partition:
    rows = torch.tensor(counts)
    clients = [str(number) for number in range(len(rows))]
    return Partition(clients, rows.sum(1).tolist(), rows, ("a", "b"))


def test_the_owner_of_a_class_is_the_client_with_most_of_its_images() -> None:
    assert owner_of_classes(_partition([[9, 1], [1, 9]])) == [0, 1]


def test_classes_that_are_spread_evenly_have_no_owner() -> None:
    assert owner_of_classes(_partition([[5, 6], [5, 5]])) is None
    assert owner_of_classes(Partition(["a"], [3], None, ())) is None
    assert owner_of_classes(None) is None


def test_classes_without_names_are_numbered() -> None:
    assert class_names(("cat",), 3) == ["cat", "1", "2"]


def test_the_section_on_clients_shows_classes_or_numbers_only() -> None:
    part = partition_part(ImageFacts(partition=_partition([[9, 1], [0, 4]])), Training())
    text = "".join(map(str, part.content))
    assert "2 clients have 4 to 10 images" in text
    assert "<title>a: 9</title>" in text
    unlabelled = Partition(["<i>"], [7], None, ())
    part = partition_part(ImageFacts(partition=unlabelled), Training())
    text = "".join(map(str, part.content))
    assert "<title>images: 7</title>" in text
    assert "<i>" not in text


def test_of_many_classes_the_rarest_share_a_colour() -> None:
    """20 classes, 14 colours: 13 classes have their own, 7 share the last."""
    counts = torch.arange(20, 0, -1)[None]
    partition = Partition(["0"], [int(counts.sum())], counts, ())
    part = partition_part(ImageFacts(partition=partition), Training())
    text = "".join(map(str, part.content))
    assert f"<title>7 other classes: {sum(range(1, 8))}</title>" in text


def test_a_folder_without_images_changes_nothing(tmp_path: Path) -> None:
    training = Training()
    training.add(
        {"round": 1, "clients": [{"client": "a", "images": 32}, {"client": "b", "images": 16}]}
    )
    part = partition_part(ImageFacts(), training)
    text = "".join(map(str, part.content))
    assert "from the log" in text
    assert "<title>images: 32</title>" in text
