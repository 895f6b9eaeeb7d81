"""Public images: training images of any data set, converted to the clients' shape, or held out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import raises
from PIL import Image
from torch import Tensor

from fedssl.core.errors import ConfigError, DataError
from fedssl.core.settings import validate
from fedssl.data import PUBLIC, SOURCES, HeldOut, Images
from fedssl.data.decode import decode
from fedssl.data.public import fitted


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(n: int, *shape: int) -> Tensor:
    return torch.randint(256, (n, *shape), dtype=torch.uint8, generator=stream(n))


def named(name: str, **keys: Any) -> Any:
    return validate(PUBLIC[name], keys, "public")


# -- names and keys --


def test_any_data_set_except_images_from_python_may_be_public() -> None:
    assert set(PUBLIC.names()) == {*SOURCES.names(), "held-out"} - {"given"}
    for name in PUBLIC.names():
        cls = PUBLIC[name]
        assert PUBLIC[name] is cls
        assert PUBLIC.name_of(cls) == name
        assert cls.model_fields["images"].default == 3200
        if name != "held-out":
            assert issubclass(cls, SOURCES[name])
            assert set(cls.model_fields) == {*SOURCES[name].model_fields, "images"}
    with raises(ConfigError):
        PUBLIC["given"]
    with raises(ConfigError):
        PUBLIC["heldout"]


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"images": 0}, "public.images: input should be greater than 0"),
        ({"image": 5}, 'unknown key "public.image", did you mean "public.images"'),
        ({"holdout": 5}, "public: mean, std, holdout and leave_out must be set under"),
        ({"leave_out": 0.1}, "public: mean, std, holdout and leave_out must be set under"),
        (
            {"mean": [0.5], "std": [0.5]},
            "public: mean, std, holdout and leave_out must be set under",
        ),
    ],
)
def test_keys_that_belong_under_data_are_refused(keys: dict[str, Any], sentence: str) -> None:
    for name in ("held-out", "cifar10"):
        with pytest.raises(ConfigError, match=sentence):
            named(name, **keys)


# -- held out --


@pytest.mark.parametrize(
    ("images", "count", "expected"), [(3200, 50_000, 3200), (3200, 500, 50), (7, 500, 7)]
)
def test_as_many_images_are_held_out_as_requested_or_a_tenth(
    images: int, count: int, expected: int
) -> None:
    public = HeldOut(images=images)
    rows = public.rows(count, stream())
    assert len(rows) == len(rows.unique()) == expected
    assert torch.equal(rows, rows.sort().values)
    assert rows.min() >= 0
    assert rows.max() < count
    assert torch.equal(rows, public.rows(count, stream()))
    assert not torch.equal(rows, public.rows(count, stream(1)))


def test_held_out_images_are_the_training_images_at_those_rows(tmp_path: Path) -> None:
    messages: list[str] = []
    # A selection: its rows are not rows of the pool.
    train = Images(noise(60, 3, 4, 4)).select(torch.arange(10, 60))
    public = HeldOut().take(train, tmp_path, stream(), messages.append)
    assert torch.equal(public, train.pixels[HeldOut().rows(50, stream())])
    assert len(public) == 5
    assert messages == [
        "public images: 5 of 50 training images, held out of pre-training; "
        "they are in-domain, of the kind that clients train on"
    ]


def test_too_few_images_to_hold_some_out_are_an_error() -> None:
    assert len(HeldOut().rows(20, stream())) == 2
    with raises(DataError):
        HeldOut().rows(19, stream())


def test_held_out_is_not_a_data_set_to_train_on() -> None:
    assert "held-out" not in SOURCES.names()


# -- from a data set --


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    pixels = noise(30, 3, 6, 6).permute(0, 2, 3, 1).numpy()
    np.savez(tmp_path / "a.npz", x_train=pixels, x_test=255 - pixels)
    return tmp_path


def test_some_training_images_of_a_data_set_are_public(archive: Path) -> None:
    messages: list[str] = []
    train = Images(noise(2, 3, 6, 6))
    source = noise(30, 3, 6, 6)
    public = named("npz", path="a.npz", images=12)
    taken = public.take(train, archive, stream(), messages.append)
    # Each image taken is one of the source images.
    rows = [int((source == image).flatten(1).all(1).nonzero()) for image in taken]
    assert len(set(rows)) == 12
    assert rows == sorted(rows)
    assert rows != list(range(12))
    assert torch.equal(taken, public.take(train, archive, stream(), messages.append))
    assert not torch.equal(taken, public.take(train, archive, stream(1), messages.append))
    assert messages == []
    assert len(public.rows(100, stream())) == 0  # no client loses an image


def test_all_images_are_public_if_there_are_fewer_than_requested(archive: Path) -> None:
    messages: list[str] = []
    taken = named("npz", path="a.npz").take(
        Images(noise(2, 3, 6, 6)), archive, stream(), messages.append
    )
    assert torch.equal(taken, noise(30, 3, 6, 6))
    assert messages == ["public images: all 30 that exist, not 3,200"]


def test_a_folder_of_images_may_be_public(tmp_path: Path) -> None:
    messages: list[str] = []
    for k in range(3):
        Image.new("L", (9, 5), 50 * k).save(tmp_path / f"{k}.png")
    (tmp_path / "3.png").write_text("no image")
    public = named("folder", path=str(tmp_path), layout="flat", size=8, bad_share=0.5)
    taken = public.take(Images(noise(2, 1, 4, 4)), tmp_path, stream(), messages.append)
    assert taken.shape == (3, 1, 4, 4)
    assert taken[:, 0, 0, 0].tolist() == [0, 50, 100]
    assert messages[-2:] == [
        "left out 1 file:\n  not an image: 3.png",
        "public images: all 3 that exist, not 3,200",
    ]


def test_one_image_is_too_few(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x_train=np.zeros((1, 4, 4), np.uint8))
    with raises(DataError):
        named("npz", path="one.npz").take(Images(noise(2, 1, 4, 4)), tmp_path, stream(), print)


# -- conversion --


@pytest.mark.parametrize("shape", [(3, 9, 9), (1, 9, 9), (3, 6, 11), (1, 12, 5)])
@pytest.mark.parametrize(("size", "channels"), [(4, 3), (4, 1), (16, 3), (9, 1)])
def test_images_are_converted_by_the_rules_for_files(
    shape: tuple[int, int, int], size: int, channels: int, tmp_path: Path
) -> None:
    """Saved as a lossless PNG and decoded at that size, each image has the same pixels."""
    images = noise(3, *shape)
    made = fitted(images, (channels, size, size))
    assert made.shape == (3, channels, size, size)
    assert made.dtype == torch.uint8
    for image, pixels in zip(images, made, strict=True):
        array = image[0].numpy() if shape[0] == 1 else image.permute(1, 2, 0).numpy()
        Image.fromarray(array).save(tmp_path / "image.png")
        assert np.array_equal(pixels.numpy(), decode(tmp_path / "image.png", size, channels))


def test_images_of_the_right_shape_are_not_copied() -> None:
    images = noise(3, 2, 5, 7)
    assert fitted(images, (2, 5, 7)) is images


@pytest.mark.parametrize(
    ("shape", "image"), [((4, 8, 8), (3, 8, 8)), ((3, 8, 8), (2, 8, 8)), ((3, 8, 8), (3, 8, 10))]
)
def test_images_that_cannot_be_converted_are_refused(
    shape: tuple[int, ...], image: tuple[int, int, int]
) -> None:
    with raises(DataError):
        fitted(noise(2, *shape), image)
