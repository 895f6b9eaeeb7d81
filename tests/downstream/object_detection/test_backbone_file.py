"""The backbone, the learning rate and the checkpoints of a fine-tuning."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from error_messages import raises
from safetensors.torch import save_file

from fedssl import nets
from fedssl.core.errors import ConfigError, RunError
from fedssl.downstream.exported_files import find_backbone
from fedssl.downstream.object_detection.backbone_file import read_backbone
from fedssl.downstream.object_detection.checkpoints import Checkpoints
from fedssl.downstream.object_detection.finetune import load
from fedssl.downstream.object_detection.maskrcnn import check_settings, image_sizes
from fedssl.downstream.object_detection.settings import DetectionSettings


def export(
    file: Path, backbone: str = "resnet18", stem: str = "cifar", channels: int = 3, **header: str
) -> Path:
    about = {
        "backbone": backbone,
        "stem": stem,
        "image": json.dumps([channels, 32, 32]),
        "mean": "null",
        "std": "null",
    }
    nets.save_backbone({"w": torch.zeros(1)}, file, about | header)
    return file


def test_the_header_is_read(tmp_path: Path) -> None:
    start = read_backbone(
        export(tmp_path / "b.safetensors", mean="[0.1, 0.2, 0.3]", std="[1.0, 2.0, 3.0]")
    )
    assert (start.backbone, start.stem, start.channels) == ("resnet18", "cifar", 3)
    assert (start.mean, start.std) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))


def test_pixels_that_were_not_normalised_are_not(tmp_path: Path) -> None:
    start = read_backbone(export(tmp_path / "b.safetensors", channels=1))
    assert (start.mean, start.std) == ((0.0,), (1.0,))


def test_an_untrained_backbone_is_drawn_from_the_seed(tmp_path: Path) -> None:
    start = read_backbone(export(tmp_path / "b.safetensors", channels=1))
    weights = [start.untrained(seed).weights["conv1.weight"] for seed in (0, 0, 1)]
    assert weights[0].shape == (64, 1, 3, 3)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("backbone", "channels", "message"),
    [
        ("vit_tiny", 3, "is a vit_tiny: a feature pyramid needs a backbone of four stages"),
        ("cnn", 3, "is a cnn"),
        ("resnet18", 4, "expects images of 4 channels"),
    ],
)
def test_unsupported_backbones_are_rejected(
    tmp_path: Path, backbone: str, channels: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_backbone(export(tmp_path / "b.safetensors", backbone, channels=channels))


def test_a_backbone_is_no_detector(tmp_path: Path) -> None:
    with raises(ConfigError):
        load(export(tmp_path / "b.safetensors"))


def test_files_that_are_no_backbone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"nothing")
    with raises(ConfigError):
        read_backbone(tmp_path / "a")
    nets.save_backbone({"w": torch.zeros(1)}, tmp_path / "b", {})
    with raises(ConfigError):
        read_backbone(tmp_path / "b")


def test_the_backbone_of_a_run(tmp_path: Path) -> None:
    with raises(ConfigError):
        find_backbone(tmp_path)
    with raises(ConfigError):
        find_backbone(tmp_path / "no")
    file = export(tmp_path / "backbone-a%2Fb.safetensors")
    assert find_backbone(tmp_path) == find_backbone(file) == find_backbone(tmp_path, "a/b") == file
    other = export(tmp_path / "backbone-c.safetensors")
    assert find_backbone(tmp_path, "c") == other
    with raises(ConfigError):
        find_backbone(tmp_path)
    with raises(ConfigError):
        find_backbone(tmp_path, "d")


def test_the_rate_of_the_usual_schedule() -> None:
    """A warm-up from a thousandth of 0.02 in 1,000 iterations, halfway 0.001 + 0.999 / 2 of it; a
    tenth from 60,000 on, a hundredth from 80,000.
    """
    rate = DetectionSettings().lr_at
    assert rate(0) == pytest.approx(0.00002)
    assert rate(500) == pytest.approx(0.02 * 0.5005)
    assert [rate(i) for i in (1000, 59_999)] == [0.02] * 2
    assert [rate(i) for i in (60_000, 79_999)] == pytest.approx([0.002] * 2)
    assert [rate(i) for i in (80_000, 89_999)] == pytest.approx([0.0002] * 2)


def test_a_short_schedule_and_a_small_batch() -> None:
    """Of 90 iterations nine are warm-up, and the drops come after 60 and 80; a batch of four has a
    quarter of the learning rate.
    """
    settings = DetectionSettings(iterations=90, batch=4)
    assert settings.lr_at(8) == pytest.approx(0.005 * (0.001 + 0.999 * 8 / 9))
    assert [settings.lr_at(i) for i in (9, 59, 60, 79, 80)] == pytest.approx(
        [0.005, 0.005, 5e-4, 5e-4, 5e-5]
    )
    assert DetectionSettings(batch=4, lr=0.3).peak_lr == 0.3


def test_images_are_scaled_with_the_cells_of_the_stem() -> None:
    assert image_sizes(DetectionSettings(), "imagenet") == (800, 1333)
    assert image_sizes(DetectionSettings(), "cifar") == (200, 333)
    assert image_sizes(DetectionSettings(size=400), "imagenet") == (400, 666)
    with raises(ConfigError):
        image_sizes(DetectionSettings(size=400, longest=100), "imagenet")


@pytest.mark.parametrize("settings", [{"norm": "frozen"}, {"freeze": 1}])
def test_an_untrained_backbone_has_nothing_to_freeze(settings: dict[str, object]) -> None:
    check_settings(DetectionSettings(**settings))
    with raises(ConfigError):
        check_settings(DetectionSettings(start="random", **settings))


def test_checkpoints_are_found_again_and_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c")
    assert checkpoints.load(print) is None
    for iteration in (9, 10, 200):
        checkpoints.save(iteration, {"a": torch.full((2,), float(iteration))}, {"a": torch.ones(2)})
    assert [int(file.stem[:8]) for file in checkpoints.files()] == [200, 10]
    checkpoint = checkpoints.load(print)
    assert checkpoint is not None
    assert checkpoint.iteration == 200
    assert checkpoint.weights["a"].tolist() == [200, 200]
    assert checkpoint.momenta["a"].tolist() == [1, 1]


def test_a_checkpoint_of_an_earlier_version_is_found(tmp_path: Path) -> None:
    """Earlier versions wrote the hash into the name of the file."""
    save_file({"a": torch.ones(2)}, tmp_path / "00000007-0123abcd.safetensors")
    checkpoint = Checkpoints(tmp_path).load(print)
    assert checkpoint is not None
    assert checkpoint.iteration == 7
    assert checkpoint.weights["a"].tolist() == [1, 1]


def test_a_damaged_checkpoint_is_not_used(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    messages: list[str] = []
    for iteration in (1, 2):
        checkpoints.save(iteration, {"a": torch.zeros(2)}, {})
    newest, oldest = checkpoints.files()
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    checkpoint = checkpoints.load(messages.append)
    assert checkpoint is not None
    assert checkpoint.iteration == 1
    assert messages == [f"{newest} is damaged; trying the previous checkpoint"]
    oldest.write_bytes(b"")
    with raises(RunError):
        checkpoints.load(messages.append)


def test_settings_are_documented() -> None:
    """Names and defaults of the page's table."""
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "detection.md").read_text("utf-8")
    table = page.partition("| setting |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.MULTILINE))
    assert list(rows) == list(DetectionSettings.model_fields)
    for name, field in DetectionSettings.model_fields.items():
        shown = "none" if field.default is None else str(field.default).lower()
        assert rows[name].strip("`").replace(",", "") == shown, name
