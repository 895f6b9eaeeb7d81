"""C3, C4: what must not leave: images, the names of their files, anything at all over a network."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import fedssl

CANARY = "canary-7f3a9c"
EXPERIMENT = {
    "rounds": 2,
    "clients": 2,
    "data": {"name": "folder", "path": "photos", "layout": "clients-classes", "size": 16, "bad_share": 0.5},
    "partition": {"name": "natural"},
    "method": {"name": "mocov2", "backbone": "cnn", "dim": 16, "queue": 32},
    "train": {"batch": 4, "checkpoint_every": 0},
    "probe": {"every": 1, "epochs": 3, "picture": True, "beside": ["random", "isolated"]},
}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    for part in ("train/a/cat", "train/a/dog", "train/b/cat", "train/b/dog", "test/cat", "test/dog"):
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


def test_nothing_of_the_images_is_left_in_a_run_directory(photos: Path, tmp_path: Path) -> None:
    experiment = fedssl.Experiment.from_dict(EXPERIMENT)
    fedssl.run(experiment, tmp_path / "run", data_dir=photos, quiet=True)
    pixels = [np.asarray(Image.open(path)) for path in sorted(photos.rglob(f"{CANARY}-[0-9].png"))]
    # A row of any image, as its bytes and as the floats a model sees, channels last and first.
    rows = [image[3].tobytes() for image in pixels] + [image[3, :, 0].tobytes() for image in pixels]
    rows += [(image[3, :, 0].astype(np.float32) / 255).tobytes() for image in pixels]
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"results.json", "rounds.jsonl", "picture.png", "backbone.safetensors"} <= {path.name for path in files}
    assert any(path.parent.name == "memory" for path in files)
    for path in files:
        data = path.read_bytes()
        assert CANARY not in path.name
        assert CANARY.encode() not in data, path
        assert not any(row in data for row in rows), path


def test_a_local_run_opens_no_socket(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[Any, ...]] = []

    class Refused(socket.socket):
        def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
            opened.append(args)
            raise OSError("no network")

    monkeypatch.setattr(socket, "socket", Refused)
    monkeypatch.setattr(socket, "create_connection", Refused)
    monkeypatch.setattr(socket, "getaddrinfo", Refused)
    fedssl.run(fedssl.Experiment.from_dict(EXPERIMENT), tmp_path / "run", data_dir=photos, quiet=True)
    assert (tmp_path / "run/picture.png").is_file()
    assert opened == []
