"""C3, C4: images and their file names never leave, and a local run opens no connection."""

from __future__ import annotations

import contextlib
import io
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import fedssl
from fedssl.core.console import HIDE_NAMES

CANARY = "canary-7f3a9c"
EXPERIMENT = {
    "rounds": 2,
    "clients": 2,
    "data": {
        "name": "folder",
        "path": "photos",
        "layout": "clients-classes",
        "size": 16,
        "bad_share": 0.5,
    },
    "partition": {"name": "natural"},
    "method": {"name": "mocov2", "backbone": "cnn", "dim": 16, "queue": 32},
    "train": {"batch": 4, "checkpoint_every": 0},
    "probe": {"every": 1, "epochs": 3, "picture": True, "baselines": ["random", "isolated"]},
}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    for part in (
        "train/a/cat",
        "train/a/dog",
        "train/b/cat",
        "train/b/dog",
        "test/cat",
        "test/dog",
    ):
        folder = tmp_path / "data/photos" / part
        folder.mkdir(parents=True)
        for n in range(5):
            image = Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8))
            text, exif = PngInfo(), Image.Exif()
            text.add_text("Comment", CANARY)
            exif[0x010E], exif[0x8825] = CANARY, {1: "N", 29: CANARY}  # description; GPS date
            image.save(folder / f"{CANARY}-{n}.png", pnginfo=text, exif=exif)
            with (folder / f"{CANARY}-{n}.png").open("ab") as file:
                file.write(CANARY.encode())
    (tmp_path / f"data/photos/train/a/cat/{CANARY}-broken.png").write_text(CANARY)
    return tmp_path / "data"


@pytest.mark.rows("C3")
def test_a_run_directory_contains_no_image_data(photos: Path, tmp_path: Path) -> None:
    experiment = fedssl.Experiment.from_dict(EXPERIMENT)
    fedssl.run(experiment, tmp_path / "run", data_dir=photos, quiet=True)
    pixels = [np.asarray(Image.open(path)) for path in sorted(photos.rglob(f"{CANARY}-[0-9].png"))]
    # A row of any image, as its bytes and as the floats a model sees, channels last and first.
    rows = [image[3].tobytes() for image in pixels] + [image[3, :, 0].tobytes() for image in pixels]
    rows += [(image[3, :, 0].astype(np.float32) / 255).tobytes() for image in pixels]
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"results.json", "rounds.jsonl", "picture.png", "backbone.safetensors"} <= {
        path.name for path in files
    }
    assert any(path.parent.name == "memory" for path in files)
    for path in files:
        data = path.read_bytes()
        assert CANARY not in path.name
        assert CANARY.encode() not in data, path
        assert not any(row in data for row in rows), path


def _experiment(folder: Path, share: float) -> Path:
    changed = {
        "rounds": 1,
        "data.bad_share": share,
        "data.cache": "off",
        "probe.linear": False,
        "probe.baselines": [],
    }
    experiment = fedssl.Experiment.from_dict(EXPERIMENT).with_changes(changed)
    (folder / "sweep.toml").write_text(experiment.to_toml())
    return folder / "sweep.toml"


@pytest.mark.rows("C3")
def test_the_name_of_a_bad_file_is_printed_except_into_logs(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Callable[..., tuple[int, str, str]],
) -> None:
    command = ("partition", str(_experiment(tmp_path, 0.01)), "--data-dir", str(photos))
    name = f": a/cat/{CANARY}-broken.png\n"
    code, _, stderr = cli(*command)
    assert (code, name in stderr) == (3, True)
    monkeypatch.setenv(HIDE_NAMES, "1")
    code, _, stderr = cli(*command)
    assert (code, CANARY in stderr) == (3, False)
    assert "files are named on a terminal only" in stderr
    monkeypatch.setattr(sys, "stderr", screen := io.StringIO())
    monkeypatch.setattr(screen, "isatty", lambda: True)
    assert cli(*command)[0] == 3
    assert name in screen.getvalue()


@pytest.mark.rows("C3")
@pytest.mark.parametrize("share", [0.5, 0.01])
def test_no_file_of_a_sweep_names_an_image(
    share: float, photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Messages of trainings go into logs, and the reason of a failure into the table. A broken file
    is skipped in the first sweep and ends the training of the second.
    """
    file, out = _experiment(tmp_path, share), tmp_path / "out"
    with contextlib.suppress(fedssl.FedsslError):  # not all trainings succeeded
        fedssl.sweep(str(file), seeds=1, probes=["knn"], dir=out, device="cpu", data_dir=photos)
    files = [path for path in out.rglob("*") if path.is_file()]
    expected = "left out 1 file" if share == 0.5 else "1 of 11 files cannot be read as images"
    assert any(
        expected in path.read_text("utf-8", "replace") for path in files if path.name == "log.txt"
    )
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
    assert CANARY not in capfd.readouterr().out  # its own standard error names them to the user


@pytest.mark.rows("C4")
def test_a_local_run_opens_no_socket(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[Any, ...]] = []

    class Refused(socket.socket):
        def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
            opened.append(args)
            raise OSError("no network")

    monkeypatch.setattr(socket, "socket", Refused)
    monkeypatch.setattr(socket, "create_connection", Refused)
    monkeypatch.setattr(socket, "getaddrinfo", Refused)
    fedssl.run(
        fedssl.Experiment.from_dict(EXPERIMENT), tmp_path / "run", data_dir=photos, quiet=True
    )
    assert (tmp_path / "run/picture.png").is_file()
    assert opened == []
