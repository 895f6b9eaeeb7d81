"""Weights files: round trips, foreign names, other channels, and errors for other files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from error_messages import raises
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedssl.core.errors import ConfigError
from fedssl.nets import ResNet, build, load_backbone, read_weights, save_backbone
from fedssl.nets.resnet import Basic
from fedssl.nets.weights import adapt_channels


class Tiny(ResNet):
    block = Basic
    depths = (1, 1, 1, 1)
    width = 4


def _saved(tmp_path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file(tensors, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def _equal(a: ResNet, b: ResNet) -> bool:
    return all(
        torch.equal(x, y)
        for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


def test_round_trip(tmp_path: Path) -> None:
    mine = Tiny()
    other = Tiny()
    path = tmp_path / "out" / "backbone.safetensors"
    save_backbone(mine.state_dict(), path, {"name": "tiny", "round": "3"})
    assert not _equal(mine, other)
    pointers = [tensor.data_ptr() for tensor in other.state_dict().values()]
    load_backbone(other, path)
    assert _equal(mine, other)
    assert pointers == [t.data_ptr() for t in other.state_dict().values()], (
        "weights must be copied in place"
    )
    assert [file.name for file in path.parent.iterdir()] == ["backbone.safetensors"]
    with safe_open(path, "pt") as file:
        header = file.metadata()
    assert {key: header[key] for key in ("name", "round")} == {"name": "tiny", "round": "3"}
    assert header.keys() - {"name", "round"} == {"fedssl.hash", "fedssl.sha256"}


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "backbone.safetensors"
    save_backbone({"a": torch.ones(1)}, path, {})
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("fedssl.core.files.atomic.os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        save_backbone({"a": torch.zeros(1)}, path, {})
    assert path.read_bytes() == before


def test_a_renamed_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is synced after the file is renamed: otherwise a power cut may remove the file."""
    synced: list[tuple[Path, bool]] = []
    path = tmp_path / "backbone.safetensors"
    monkeypatch.setattr(
        "fedssl.core.files.atomic.sync_folder",
        lambda folder: synced.append((folder, path.is_file())),
    )
    save_backbone({"a": torch.ones(1)}, path, {})
    assert synced == [(tmp_path, True)]


def test_weights_laid_out_for_an_accelerator_are_saved(tmp_path: Path) -> None:
    row = torch.randn(24)
    permuted = row.view(2, 2, 2, 3).permute(0, 3, 1, 2)
    save_backbone({"a": permuted, "b": row[:4], "c": row[4:8]}, tmp_path / "w.safetensors", {})
    with safe_open(tmp_path / "w.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("a"), permuted)
        assert torch.equal(file.get_tensor("c"), row[4:8])


@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "encoder.", "module.encoder."])
def test_prefixes_and_classifier(tmp_path: Path, prefix: str) -> None:
    mine = Tiny()
    other = Tiny()
    tensors = {prefix + name: tensor for name, tensor in mine.state_dict().items()}
    tensors |= {f"{prefix}fc.weight": torch.ones(10, 32), f"{prefix}fc.bias": torch.ones(10)}
    load_backbone(other, _saved(tmp_path, tensors))
    assert _equal(mine, other)


def test_counters_may_be_missing(tmp_path: Path) -> None:
    mine = Tiny()
    other = Tiny()
    tensors = {
        name: t for name, t in mine.state_dict().items() if not name.endswith("num_batches_tracked")
    }
    load_backbone(other, _saved(tmp_path, tensors))
    assert torch.equal(mine.conv1.weight, other.conv1.weight)


def test_the_first_misfit_is_named(tmp_path: Path) -> None:
    tensors = Tiny().state_dict()
    del tensors["layer3.0.conv2.weight"]
    with raises(ConfigError):
        load_backbone(Tiny(), _saved(tmp_path, tensors))
    surplus = {**Tiny().state_dict(), **{f"layer5.{i}.bias": torch.ones(1) for i in range(5)}}
    with raises(ConfigError):
        load_backbone(Tiny(), _saved(tmp_path, surplus))
    with raises(ConfigError):
        load_backbone(Tiny(), _saved(tmp_path, Tiny(stem="imagenet").state_dict()))
    twice = {
        **Tiny().state_dict(),
        "encoder.conv1.weight": torch.ones(4, 3, 3, 3),
        "module.bn1.bias": torch.ones(4),
    }
    with raises(ConfigError):
        load_backbone(Tiny(), _saved(tmp_path, twice))


def test_a_misfit_changes_nothing(tmp_path: Path) -> None:
    net = Tiny()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(ConfigError):
        load_backbone(net, _saved(tmp_path, {"conv1.weight": torch.ones(4, 3, 3, 3)}))
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    with raises(ConfigError):
        load_backbone(Tiny(), tmp_path / "absent.safetensors")
    torch.save({"a": torch.ones(1)}, tmp_path / "pickled.pth")
    with raises(ConfigError):
        load_backbone(Tiny(), tmp_path / "pickled.pth")


def test_only_pickled_files_are_to_be_unpickled(tmp_path: Path) -> None:
    """Files of features and exported programs are zip files too."""
    np.savez(tmp_path / "features.npz", features=np.ones(2))
    with pytest.raises(ConfigError, match="not a safetensors file"):
        read_weights(tmp_path / "features.npz")
    torch.save({"a": torch.ones(1)}, tmp_path / "pickled.pth")
    with pytest.raises(ConfigError, match=r"torch\.load"):
        read_weights(tmp_path / "pickled.pth")


def test_grey_images_give_the_features_of_three_equal_channels(tmp_path: Path) -> None:
    colour = Tiny(channels=3).eval()
    grey = Tiny(channels=1).eval()
    load_backbone(grey, _saved(tmp_path, colour.state_dict()))
    x = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(grey(x), colour(x.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-5)
    load_backbone(colour, _saved(tmp_path, grey.state_dict()))
    torch.testing.assert_close(colour(x.expand(-1, 3, -1, -1)), grey(x), rtol=1e-4, atol=1e-5)


def test_more_channels_repeat_in_turn() -> None:
    weight = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1)
    assert adapt_channels(weight, 5).flatten().tolist() == pytest.approx([0.6, 1.2, 1.8, 0.6, 1.2])
    assert adapt_channels(weight, 1).flatten().tolist() == [6.0]
    assert adapt_channels(weight, 3) is weight


@pytest.mark.oracle
@pytest.mark.parametrize("channels", [1, 2, 4, 7])
def test_adapts_as_timm(channels: int) -> None:
    timm = pytest.importorskip("timm")
    weight = torch.randn(4, 3, 3, 3)
    theirs = timm.models.adapt_input_conv(channels, weight)
    torch.testing.assert_close(adapt_channels(weight, channels), theirs)


@pytest.mark.oracle
def test_loads_timm_resnet18(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    theirs = timm.create_model("resnet18", pretrained=False).eval()
    path = _saved(tmp_path, theirs.state_dict())
    mine = build("resnet18", stem="imagenet").eval()
    load_backbone(mine, path)
    x = torch.randn(2, 3, 64, 64)
    expected = theirs.forward_head(theirs.forward_features(x), pre_logits=True)
    torch.testing.assert_close(mine(x), expected, rtol=1e-4, atol=1e-5)


def test_equal_weights_make_equal_files(tmp_path: Path) -> None:
    header = {key: f"{key} ü" for key in "hgfedcba"}
    files = [tmp_path / str(i) for i in range(10)]
    for file in files:
        save_backbone({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(())}, file, header)
    assert len({file.read_bytes() for file in files}) == 1
    with safe_open(files[0], "pt") as opened:
        assert header.items() <= opened.metadata().items()
        assert torch.equal(opened.get_tensor("a"), torch.arange(6.0).view(2, 3))


def _small_file(path: Path) -> bytes:
    save_backbone(
        {"a": torch.arange(6.0), "b": torch.ones(2, dtype=torch.int64)}, path, {"model": "global"}
    )
    return path.read_bytes()


@pytest.mark.parametrize("bit", [0, 5])
def test_any_changed_bit_is_detected(bit: int, tmp_path: Path) -> None:
    """In the length of the header, its keys, its hash, or the weights."""
    path = tmp_path / "backbone.safetensors"
    data = _small_file(path)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << bit
        path.write_bytes(bytes(damaged))
        with pytest.raises(ConfigError, match=r"is damaged|is not a safetensors file"):
            read_weights(path)


def test_the_hash_is_that_of_the_file_with_zeros_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "backbone.safetensors"
    data = _small_file(path)
    digest = read_weights(path)[0]["fedssl.sha256"]
    blank = data.replace(digest.encode(), b"0" * 64)
    assert hashlib.sha256(blank).hexdigest() == digest


def test_a_file_without_a_hash_is_read(tmp_path: Path) -> None:
    """As exported by an earlier version, or by other programs."""
    path = tmp_path / "other.safetensors"
    save_file({"a": torch.ones(3)}, path, {"fedssl": "0.1.0", "hash": "x", "sha256": "y"})
    header, tensors = read_weights(path)
    assert header == {"fedssl": "0.1.0", "hash": "x", "sha256": "y"}
    assert torch.equal(tensors["a"], torch.ones(3))
