"""Measuring on images that a run was not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import raises
from factories import bright_pixels, make_experiment
from PIL import Image

import fedssl
from fedssl.core.errors import ConfigError
from fedssl.data import Dataset, Images
from fedssl.data.public import fitted
from fedssl.evaluation.transfer import MAY_BE_SEEN, other_images
from fedssl.experiment.experiment import Experiment


def quiet(line: str) -> None: ...


def images(n: int, seed: int, classes: int, size: int = 8, channels: int = 3) -> Images:
    return Images(
        *bright_pixels(n, seed, classes=classes, noise=60, step=40, channels=channels, size=size)
    )


OTHER = Dataset(images(60, 2, 5, 12, 1), images(30, 3, 5, 12, 1))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    experiment = make_experiment(
        clients=2,
        rounds=1,
        method__name="simclr",
        data={"leave_out": 0.1, "mean": [0.5] * 3, "std": [0.2] * 3},
        probe__epochs=30,
    )
    folder = tmp_path_factory.mktemp("runs") / "run"
    own = Dataset(images(60, 0, 3), images(30, 1, 3))
    fedssl.run(experiment, folder, "cpu", dataset=own, quiet=True)
    return fedssl.Run(folder, device="cpu")  # without the images it was trained on


def test_fitted_to_the_runs_images() -> None:
    """Scaled and given channels like files; labels and class names are kept."""
    named = Images(OTHER.train.pixels, OTHER.train.labels, tuple("abcde"))
    found = other_images(Dataset(named, OTHER.test), (3, 8, 8), Path(), quiet)
    assert found.test is not None
    for mine, theirs in ((found.train, named), (found.test, OTHER.test)):
        assert theirs is not None
        assert torch.equal(mine.pixels, fitted(theirs.pixels, (3, 8, 8)))
        assert torch.equal(mine.labels, theirs.labels)
    assert found.train.classes == tuple("abcde")
    assert other_images(OTHER, (1, 12, 12), Path(), quiet).train is OTHER.train


def photos(folder: Path, size: int = 20) -> Path:
    """Write two classes of four colour images each."""
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for n in range(4):
            Image.effect_noise((size, size), 90).convert("RGB").save(folder / name / f"{n}.png")
    return folder


@pytest.mark.parametrize(
    ("image", "size", "expected"),
    [
        ((3, 8, 8), None, (3, 8, 8)),
        ((1, 12, 12), None, (1, 12, 12)),
        ((1, 12, 12), 16, (1, 16, 16)),
    ],
)
def test_a_folder_is_read_in_the_shape_of_the_runs_images(
    image: tuple[int, int, int], size: int | None, expected: tuple[int, ...], tmp_path: Path
) -> None:
    """Files are decoded in that shape, so nothing is converted and no line is printed."""
    table = {"name": "folder", "path": str(photos(tmp_path / "photos")), "layout": "classes"}
    if size is not None:
        table["size"] = size
    lines: list[str] = []
    found = other_images(table, image, Path(), lines.append)
    assert found.train.image_shape == expected
    assert not [line for line in lines if "converted" in line]


def test_a_fixed_size_is_converted_and_reported() -> None:
    lines: list[str] = []
    found = other_images("fashion-mini", (3, 16, 16), Path(), lines.append)
    assert found.train.image_shape == (3, 16, 16)
    assert lines == [
        "images of (1, 28, 28) (channels, height, width) are converted to (3, 16, 16), the shape "
        "of the run's images unless data.size sets another"
    ]
    larger = other_images({"name": "fashion-mini", "size": 32}, (1, 16, 16), Path(), quiet)
    assert larger.train.image_shape == (1, 32, 32)


@pytest.mark.parametrize("probe", ["knn", "linear", "semi"])
def test_measured_on_their_classes(run: fedssl.Run, probe: str) -> None:
    """Five classes where the run had three; no note on images that were left out or seen."""
    settings = {} if probe == "knn" else {"epochs": 2, "labels": 1}
    score = run.evaluate(probe, OTHER, **settings)
    assert list(score) == ["global"]
    assert [sum(row) for row in score.confusion["global"]] == [6] * 5
    assert score.note is None


def test_accuracy_equals_that_of_images_fitted_by_hand(run: fedssl.Run) -> None:
    """The same as measuring with images that were fitted before."""
    assert OTHER.test is not None
    by_hand = Dataset(
        *(Images(fitted(part.pixels, (3, 8, 8)), part.labels) for part in (OTHER.train, OTHER.test))
    )
    expected = fedssl.Run(run.dir, device="cpu", dataset=by_hand).evaluate("linear")
    found = run.evaluate("linear", OTHER)
    assert found.confusion == expected.confusion
    assert found.mean > 40  # of five classes that differ in brightness


def test_a_data_set_by_name(run: fedssl.Run, tmp_path: Path) -> None:
    arrays = {
        "x_train": OTHER.train.pixels[:, 0].numpy(),
        "y_train": OTHER.train.labels.numpy(),
        "x_test": images(30, 3, 5, 12, 1).pixels[:, 0].numpy(),
        "y_test": np.arange(30) % 5,
    }
    np.savez(tmp_path / "other.npz", **arrays)
    by_name = run.evaluate("linear", {"name": "npz", "path": str(tmp_path / "other.npz")})
    assert by_name.confusion == run.evaluate("linear", OTHER).confusion


@pytest.mark.parametrize(
    ("on", "sentence"),
    [
        ("cifr10", 'unknown data set "cifr10", did you mean "cifar10"'),
        ({"name": "cifar10", "sise": 3}, 'unknown key "data.sise"'),
        (
            {"name": "cifar10", "leave_out": 0.1},
            "normalised like the training images, and all of them are used",
        ),
        ({"name": "cifar10", "size": 0}, "data.size: input should be greater than or equal to 1"),
        ("given", "need the name of a data set"),
        ({"path": "x"}, "need the name of a data set"),
        (3, "the name of a data set, a table of settings as under"),
    ],
)
def test_errors(run: fedssl.Run, on: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run.evaluate("linear", on)


def test_the_runs_own_images_are_recognised(tmp_path: Path) -> None:
    """The note on images that the model has seen applies here too."""
    chosen = Experiment.from_dict(
        {
            "clients": 2,
            "rounds": 1,
            "data": {"name": "fashion-mini"},
            "method": {"name": "simclr", "backbone": "cnn", "hidden": 8, "dim": 4},
            "probe": {"every": 0, "linear": False},
        }
    )
    run = fedssl.run(chosen, tmp_path / "run", "cpu", quiet=True)
    settings = {"labels": 20, "epochs": 1}
    for on in ("fashion-mini", {"name": "fashion-mini", "holdout": 0}):
        assert (run.evaluate("semi", on, **settings).note or "") == run.evaluate(
            "semi", **settings
        ).note
    held_out = run.evaluate("semi", {"name": "fashion-mini", "holdout": 500}, **settings)
    assert held_out.tested == 500
    assert held_out.note == MAY_BE_SEEN  # the run has trained on all of them


def test_a_folder_has_to_be_named(tmp_path: Path) -> None:
    """A run of images in a folder does not take "folder" alone for its own."""
    path = str(photos(tmp_path / "photos", 8))
    data = {"name": "folder", "path": path, "layout": "classes", "size": 8}
    method = {"name": "simclr", "backbone": "cnn", "hidden": 8, "dim": 4}
    chosen = Experiment.from_dict({"clients": 2, "rounds": 1, "data": data, "method": method})
    run = fedssl.run(chosen, tmp_path / "run", "cpu", quiet=True)
    with raises(ConfigError):
        run.evaluate("knn", "folder")


def test_a_clients_mix_is_of_its_own_images(run: fedssl.Run) -> None:
    for probe in ("per-client", "collaborative"):
        with raises(ConfigError):
            run.evaluate(probe, OTHER)
