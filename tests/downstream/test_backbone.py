"""Load a trained backbone from a file, a run directory or a hub folder, with its preprocessing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from error_messages import raises
from factories import bright_dataset, make_experiment
from PIL import Image

import fedssl
from fedssl import nets
from fedssl.core.errors import ConfigError, DataError
from fedssl.downstream.backbone import load_backbone
from fedssl.runs.input_images import Preprocessing

RED = (255, 0, 0)


def test_features_of_a_file_by_hand(write_backbone, put_colour) -> None:
    """Red is (1, 0, 0) after division by 255, and (1 − 0.5) / 0.25 = 2, −0.5 / 0.5 = −1, 0."""
    file = write_backbone(mean=json.dumps([0.5, 0.5, 0.0]), std=json.dumps([0.25, 0.5, 1.0]))
    backbone = load_backbone(file)
    photo = put_colour("photo.png", RED)
    expected = torch.tensor([2.0, -1.0, 0.0])
    torch.testing.assert_close(backbone.features(photo), expected)
    torch.testing.assert_close(backbone.features([photo, photo]), expected.expand(2, 3))
    torch.testing.assert_close(backbone(backbone.preprocess([photo])), expected[None])
    assert (backbone.training, backbone.dim, backbone.channels) == (False, 3, 3)


def test_every_kind_of_image_gives_the_same_input(put_colour) -> None:
    """A single image gives (C, H, W), as transforms of torchvision do; a sequence gives a batch."""
    preprocess = Preprocessing((3, 4, 4))
    path = put_colour("photo.png", RED)
    pixels = np.zeros((6, 6, 3), np.uint8)
    pixels[..., 0] = 255
    expected = torch.tensor([1.0, 0.0, 0.0])[:, None, None].expand(3, 4, 4)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    for image in (path, str(path), path.read_bytes(), Image.open(path), pixels, tensor):
        torch.testing.assert_close(preprocess(image), expected)
        torch.testing.assert_close(preprocess([image]), expected[None])
    torch.testing.assert_close(preprocess(tensor[None]), expected[None])
    torch.testing.assert_close(preprocess(pixels[None]), expected[None])


def test_a_batch_of_the_right_size_is_used_as_it_is() -> None:
    pixels = torch.randint(256, (2, 5, 3, 4), dtype=torch.uint8)  # five channels, no square
    assert torch.equal(Preprocessing((5, 3, 4))(pixels), pixels / 255)


def test_grey_cmyk_and_transparent_pictures() -> None:
    """A transparent pixel is white over a white background: 1 after division by 255."""
    preprocess = Preprocessing((1, 2, 2), background="white")
    clear = Image.new("RGBA", (3, 3), (0, 0, 0, 0))
    black = Image.new("CMYK", (3, 3), (0, 0, 0, 255))
    grey = np.full((3, 3), 51, np.uint8)
    values = [preprocess(image).unique().tolist() for image in (clear, black, grey)]
    assert values == [[1.0], [0.0], [pytest.approx(0.2)]]


@pytest.mark.parametrize(
    "image",
    [torch.rand(3, 4, 4), torch.zeros(4, 4, dtype=torch.uint8), [None]],
    ids=["floats", "two dimensions", "no numbers"],
)
def test_other_values_are_no_images(image) -> None:
    with pytest.raises(ConfigError):
        Preprocessing((3, 4, 4))(image)


def test_an_unreadable_file_is_named_in_the_detail_only(write_backbone, tmp_path: Path) -> None:
    backbone = load_backbone(write_backbone())
    (tmp_path / "private.png").write_bytes(b"nothing")
    with raises(DataError) as raised:
        backbone.features(tmp_path / "private.png")
    assert raised.value.detail == f"not an image: {tmp_path / 'private.png'}"


def test_a_run_directory_gives_the_features_of_the_run(tmp_path: Path) -> None:
    """Files are prepared as `Run.load_images` prepares them, and computed by the same weights."""
    experiment = make_experiment(rounds=1, data={"mean": [0.4] * 3, "std": [0.2] * 3})
    run = fedssl.run(experiment, tmp_path / "run", "cpu", dataset=bright_dataset(), quiet=True)
    Image.effect_noise((30, 20), 50).save(tmp_path / "noise.png")
    backbone = fedssl.load_backbone(run.dir)
    prepared = run.load_images([tmp_path / "noise.png"])
    assert torch.equal(backbone.preprocess([tmp_path / "noise.png"]), prepared)
    with torch.no_grad():
        assert torch.equal(backbone.features([tmp_path / "noise.png"]), run.backbone()(prepared))


def test_training_mode_is_restored_and_does_not_change_features(write_backbone) -> None:
    backbone = load_backbone(write_backbone(name="cnn", image=(3, 12, 12)))
    pixels = torch.randint(256, (4, 3, 12, 12), dtype=torch.uint8)
    in_eval = backbone.features(pixels)
    backbone.train()
    assert torch.equal(backbone.features(pixels), in_eval)
    assert backbone.training


def test_equal_weights_and_preprocessing_have_one_fingerprint(write_backbone) -> None:
    first = load_backbone(write_backbone("a.safetensors", rounds="1"))
    other_header = load_backbone(write_backbone("b.safetensors", rounds="2"))
    other_input = load_backbone(write_backbone("c.safetensors", image=(3, 5, 5)))
    other_weights = load_backbone(write_backbone("d.safetensors"))
    with torch.no_grad():
        other_weights.network.scale[0] = 2
    prints = [b.fingerprint() for b in (first, other_header, other_input, other_weights)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_files_that_are_no_backbone(write_backbone, tmp_path: Path) -> None:
    nets.save_backbone({"w": torch.zeros(1)}, tmp_path / "other.safetensors", {})
    with raises(ConfigError):
        load_backbone(tmp_path / "other.safetensors")
    with raises(ConfigError):
        load_backbone(tmp_path / "missing")
    header = nets.read_weights(write_backbone(name="cnn", image=(1, 12, 12)))[0]
    wrong = tmp_path / "wrong.safetensors"
    nets.save_backbone({"w": torch.zeros(1)}, wrong, {**header, "backbone": "cnn"})
    with pytest.raises(ConfigError, match="does not fit the backbone cnn of its header"):
        load_backbone(wrong)
