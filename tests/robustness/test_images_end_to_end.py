"""D1, D2, D7, D8, D9: whole runs with unusual images, or with too few of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from error_messages import raises
from factories import known_settings, needs_patches, random_pixels
from PIL import Image
from torch import Tensor

import fedssl
from fedssl.core.errors import ConfigError, DataError
from fedssl.data import Dataset, Images
from fedssl.experiment.experiment import METHODS

SMALL = {"hidden": 32, "dim": 16, "queue": 32, "classes": 5, "width": 8}
QUICK = {"train.batch": 4, "train.checkpoint_every": 0, "probe.every": 0, "probe.linear": False}


def _settings(method: str = "simclr", **more: Any) -> dict[str, Any]:
    backbone = METHODS[method].Settings.model_fields["backbone"].default
    if not needs_patches(method):
        backbone = "cnn"
    base = {
        "clients": 5,
        "data": {"name": "given"},
        "method": {"name": method, "backbone": backbone, **known_settings(method, SMALL)},
    }
    return {"base": base, "set": QUICK | more}


def _run(
    folder: Path, dataset: Any, method: str = "simclr", quiet: bool = True, **more: Any
) -> fedssl.Run:
    settings = _settings(method, **more)
    experiment = fedssl.Experiment.from_dict(settings["base"])
    return fedssl.run(experiment, folder, dataset=dataset, quiet=quiet, set=settings["set"])


def _labelled(n: int) -> tuple[Tensor, Tensor]:
    return random_pixels(n, size=10), torch.arange(n) % 5


def _lists(path: Path, sizes: list[int]) -> dict[str, Any]:
    ends = np.cumsum([0, *sizes]).tolist()
    path.write_text(
        json.dumps({str(k): list(range(ends[k], ends[k + 1])) for k in range(len(sizes))})
    )
    return {"clients": len(sizes), "partition.name": "listed", "partition.path": str(path)}


def _save_all_modes(folder: Path) -> int:
    """Save one image of every mode that cameras, scanners and office programs write; return the
    count.
    """
    folder.mkdir(parents=True)
    colour = Image.effect_noise((16, 12), 60).convert("RGB")
    for mode, suffix in (
        ("L", "png"),
        ("LA", "png"),
        ("P", "png"),
        ("1", "png"),
        ("RGBA", "png"),
        ("RGB", "jpg"),
    ):
        colour.convert(mode).save(folder / f"{mode}.{suffix}")
    colour.convert("CMYK").save(folder / "CMYK.jpg")
    colour.save(folder / "anim.gif", save_all=True, append_images=[colour.rotate(90)])
    colour.convert("I").save(folder / "deep.tif")
    return len(list(folder.iterdir()))


@pytest.mark.rows("D1", "D2")
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_of_image_is_trained_on(channels: int, tmp_path: Path) -> None:
    counts = [_save_all_modes(tmp_path / "data/photos" / hospital) for hospital in ("a", "b")]
    data = {
        "name": "folder",
        "path": "photos",
        "layout": "clients",
        "size": 12,
        "channels": channels,
    }
    settings = _settings("byol", clients=2, rounds=2, **{"partition.name": "natural"})
    experiment = fedssl.Experiment.from_dict(settings["base"] | {"data": data})
    run = fedssl.run(
        experiment, tmp_path / "run", data_dir=tmp_path / "data", quiet=True, set=settings["set"]
    )
    assert [c["client"] for c in run.rounds[-1]["clients"]] == ["a", "b"]
    assert all(
        c["dropped"] is None and c["steps"] == counts[0] // 4 for c in run.rounds[-1]["clients"]
    )
    assert run.results["table"] == {}


def _folder_with_bad_files(folder: Path, good: int) -> None:
    folder.mkdir(parents=True)
    Image.effect_noise((8, 8), 90).convert("RGB").save(folder / "good0.png")
    for n in range(1, good):
        os.link(folder / "good0.png", folder / f"good{n}.png")
    (folder / "empty.png").touch()
    (folder / "truncated.png").write_bytes((folder / "good0.png").read_bytes()[:60])
    (folder / "notes.txt").write_text("Patients of March")


@pytest.mark.rows("D1")
def test_bad_files_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _folder_with_bad_files(tmp_path / "data/ward", good=297)
    data = {"name": "folder", "path": "ward", "layout": "flat", "size": 8}
    settings = _settings(clients=3, rounds=1, **{"train.batch": 33})
    experiment = fedssl.Experiment.from_dict(settings["base"] | {"data": data})
    run = fedssl.run(experiment, tmp_path / "run", data_dir=tmp_path / "data", set=settings["set"])
    err = capsys.readouterr().err
    assert "skipped 1 file that is not an image (notes.txt)" in err
    assert "left out 2 files:" in err
    for line in ("empty file: empty.png", "truncated or damaged: truncated.png"):
        assert line in err
    assert [c["images"] for c in run.rounds[0]["clients"]] == [99, 99, 99]
    for name in ("one-more.png", "another.png"):
        (tmp_path / "data/ward" / name).write_text("no image")
    with raises(DataError):
        fedssl.run(
            experiment,
            tmp_path / "other",
            data_dir=tmp_path / "data",
            quiet=True,
            set=settings["set"],
        )
    assert not (tmp_path / "other").exists()


@pytest.mark.rows("D7")
@pytest.mark.parametrize("topology", ["star", "isolated"])
def test_an_empty_client_is_reported_once_and_never_trains(
    topology: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = _lists(tmp_path / "lists.json", [8, 8, 0, 8, 8])
    run = _run(
        tmp_path / "run",
        random_pixels(32, size=10),
        quiet=False,
        rounds=3,
        **lists,
        **{"topology.name": topology},
    )
    assert capsys.readouterr().err.count("clients without images do not take part: 2") == 1
    for line in run.rounds:
        assert [c["client"] for c in line["clients"]] == ["0", "1", "3", "4"]
        assert not any(c["dropped"] for c in line["clients"])
    assert len(run.models()) == (
        1 if topology == "star" else 4
    )  # clients that never trained are not measured


@pytest.mark.rows("D7")
def test_no_client_has_images(tmp_path: Path) -> None:
    with raises(DataError):
        _run(tmp_path / "run", random_pixels(8, size=10), **_lists(tmp_path / "lists.json", [0, 0]))


@pytest.mark.rows("D8")
@pytest.mark.parametrize("method", METHODS.names())
def test_few_images(method: str, tmp_path: Path) -> None:
    """Clients of 0, 1, 2, 3, 5, 15 and kB + 1 = 9 images with a batch of B = 4."""
    sizes = [0, 1, 2, 3, 5, 15, 9]
    run = _run(
        tmp_path / "run",
        _labelled(sum(sizes)),
        method,
        rounds=2,
        **_lists(tmp_path / "lists.json", sizes),
    )
    for line in run.rounds:
        clients = {c["client"]: c for c in line["clients"]}
        assert list(clients) == ["1", "2", "3", "4", "5", "6"]
        assert clients.pop("1") == {
            "client": "1",
            "dropped": "too few images: training needs at least 2, but it has 1",
            "bytes_down": line["clients"][1]["bytes_down"],
            "memory_advanced": False,
        }
        assert [c["steps"] for c in clients.values()] == [
            1,
            1,
            1,
            3,
            2,
        ]  # the batch shrinks; an incomplete one is left
        assert [c["images"] for c in clients.values()] == [2, 3, 4, 12, 8]
        assert all(np.isfinite(c["loss"]) and c["dropped"] is None for c in clients.values())


@pytest.mark.rows("D8")
def test_no_client_has_enough_images(tmp_path: Path) -> None:
    with raises(ConfigError):
        _run(tmp_path / "run", _labelled(2), rounds=1, clients=2)
    assert not (tmp_path / "run").exists()


def _raising() -> NoReturn:
    raise AssertionError("a label was read")


@pytest.mark.rows("D9")
def test_labels_never_reach_training(
    tmp_path: Path, sha256: Callable[[Path], dict[str, str]]
) -> None:
    labels = torch.arange(30) % 5
    hashes = []
    for name, constants in (("true", labels), ("permuted", labels.flip(0)), ("raising", _raising)):
        dataset = Dataset(Images(random_pixels(30, size=10), constants))
        lists = _lists(tmp_path / "lists.json", [12, 10, 8])
        _run(tmp_path / name, dataset, rounds=3, **lists)
        hashes.append(sha256(tmp_path / name))
    assert hashes[0] == hashes[1] == hashes[2]
    assert len(hashes[0]) > 10
