"""`fedssl new` writes an experiment for a folder, and overwrites nothing."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedssl.experiment.experiment import load


def write_image(path: Path, mode: str = "RGB") -> None:
    """Write an image of noise, 32 pixels a side."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = np.random.default_rng(zlib.crc32(path.as_posix().encode()))
    noise = stream.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    if mode == "I;16":
        Image.fromarray(noise[..., 0].astype(np.uint16) * 16).save(path)
    else:
        Image.fromarray(noise).convert(mode).save(path)


def write_images(folder: Path, groups: dict[str, int], mode: str = "RGB") -> None:
    """Write the given numbers of images into folders."""
    for group, count in groups.items():
        for number in range(count):
            write_image(folder / group / f"image {number}.png", mode)


FOLDERS = {
    "grey 16-bit clients": ({"north": 4, "south": 4}, "I;16"),
    "clients and classes": ({"north/a": 8, "north/b": 8, "south/a": 8, "south/b": 8}, "RGB"),
    "flat": ({".": 12}, "RGB"),
    "train and test": ({"train/a": 6, "train/b": 6, "test/a": 4, "test/b": 4}, "RGB"),
    "clients and test": ({"train/n": 6, "train/s": 6, "test/a": 4, "test/b": 4}, "RGB"),
    "three images": ({".": 3}, "RGB"),
    "'quoted' \"names\" with ümlauts": ({"O'Neil": 4, 'the "big" one': 4, "Zürich": 4}, "RGB"),
    "one client": ({"only": 8}, "RGB"),
    "tiny clients": ({"a": 1, "b": 2, "c": 3}, "RGB"),
    "one client with two images": ({"a": 1, "b": 1, "c": 2}, "RGB"),
    "ambiguous": ({"p1/left": 6, "p1/right": 6, "p2/left": 6, "p2/extra": 6, ".": 2}, "RGB"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_the_written_experiment_runs_as_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    groups, mode = FOLDERS[name]
    write_images(Path(name), groups, mode)
    assert cli("new", name)[0] == 0
    quick = ["rounds=1", "probe.baselines=[]", "probe.epochs=1"]
    sets = [word for setting in quick for word in ("--set", setting)]
    code, out, err = cli("run", f"{name}.toml", "--quiet", "--device", "cpu", *sets)
    assert (code, err) == (0, "")
    assert "backbone.safetensors" in out


def test_a_folder_of_classes_runs_with_its_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(Path("pets"), {"cat": 12, "dog": 12})
    _, out, _ = cli("new", "pets")
    assert (
        "clients: each folder has its own images; --layout classes if each folder is a class" in out
    )
    assert cli("new", "pets", "--layout", "classes", "--force")[0] == 0
    quick = ["--set", "rounds=1", "--set", "probe.baselines=[]", "--set", "probe.epochs=1"]
    assert cli("run", "pets.toml", "--quiet", "--device", "cpu", *quick)[0] == 0


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for client in ("north", "south"):
        for number in range(3):
            path = tmp_path / "photos" / client / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((32, 32, 3), number, np.uint8)).save(path)
    return tmp_path / "photos"


def test_the_written_experiment_is_valid(photos: Path, cli: Any) -> None:
    code, out, _ = cli("new", "photos")
    assert code == 0
    assert "6 files in photos" in out
    assert "clients   2: north (3), south (3)" in out
    code, out, _ = cli("partition", "photos.toml")
    assert code == 0


def test_an_existing_file_is_kept(photos: Path, cli: Any) -> None:
    Path("mine.toml").write_text("mine")
    code, _, err = cli("new", "photos", "-o", "mine.toml")
    assert code == 2
    assert "mine.toml exists: choose another file with -o, or overwrite it with --force" in err
    assert Path("mine.toml").read_text() == "mine"
    assert cli("new", "photos", "-o", "mine.toml", "--force")[0] == 0


def test_an_unknown_preset_is_reported(photos: Path, cli: Any) -> None:
    code, _, err = cli("new", "photos", "--views", "xrays")
    assert code == 2
    assert 'unknown view preset "xrays", did you mean "xray"?' in err


def test_a_path_is_found_from_the_working_directory(photos: Path, cli: Any) -> None:
    """Relative inside the working directory, absolute outside of it."""
    assert cli("new", "photos")[0] == 0
    assert load("photos.toml").data.path == "photos"  # type: ignore[attr-defined]
    elsewhere = photos.parent / "elsewhere"
    elsewhere.mkdir()
    os.chdir(elsewhere)
    assert cli("new", "../photos")[0] == 0
    assert load("photos.toml").data.path == str(photos)  # type: ignore[attr-defined]
    assert cli("partition", "photos.toml")[0] == 0


def test_a_folder_of_the_same_name_in_the_data_directory_is_not_taken(
    photos: Path, cli: Any
) -> None:
    write_images(Path("data/photos"), {"east": 1})
    assert cli("new", "photos")[0] == 0
    assert load("photos.toml").data.path == str(photos)  # type: ignore[attr-defined]


def test_nothing_is_written_among_the_images(photos: Path, cli: Any) -> None:
    code, _, err = cli("new", "photos", "-o", "photos/mine.toml")
    assert (code, "would be among the images" in err) == (2, True)
    os.chdir(photos)
    code, _, err = cli("new", ".")
    assert (code, "runs would be written among the images" in err) == (2, True)


def test_the_machine_may_be_chosen(photos: Path, cli: Any) -> None:
    for machine, backbone in (("cpu", "cnn"), ("gpu", "resnet18")):
        assert cli("new", "photos", "--force", "--machine", machine)[0] == 0
        assert load("photos.toml").method.backbone == backbone
    code, _, err = cli("new", "photos", "--force", "--machine", "tpu")
    assert (code, 'unknown machine "tpu"' in err) == (2, True)


def test_labelled_images_may_be_elsewhere(photos: Path, cli: Any) -> None:
    write_images(Path("labelled"), {"cat": 4, "dog": 4})
    code, out, _ = cli("new", "photos", "--test", "labelled", "-o", "with.toml")
    assert code == 0
    assert "labelled images in labelled: 8 images, 2 classes: cat, dog\n" in out
    assert load("with.toml").to_dict()["data"]["test"] == "labelled"
    code, _, err = cli("new", "photos", "--test", "nowhere", "-o", "other.toml")
    assert (code, err) == (2, "fedssl: --test: there is no folder nowhere\n")
    code, _, err = cli("new", "photos", "--test", "labeled", "-o", "other.toml")
    assert err == 'fedssl: --test: there is no folder labeled, did you mean "labelled"?\n'
    code, _, err = cli("new", "photos", "--test", "labelled/cat", "-o", "other.toml")
    assert code == 2
    assert "needs one folder of images for each class" in err


def _write_shapes(folder: Path, size: tuple[int, int], mode: str, colour: Any) -> None:
    folder.mkdir()
    for number in range(4):
        Image.new(mode, size, colour).save(folder / f"{number}.png")


WHITE_EDGES = 'white: most images have light edges; or "black" (data.background)'
BLACK_EDGES = 'black: most images have dark edges; or "white" (data.background)'
CLEAR = 'white: 4 of 4 sampled images can have transparent pixels; or "black" (data.background)'
PAD = (
    "pad: cropped to squares, half of the images would lose 75% of their area or more; "
    '"crop" if only the middle matters (data.fit)'
)
CROP = (
    "crop: half of the images lose 25% of their area or less, 0 of 4 more than a third; "
    '"pad" keeps all of it (data.fit)'
)


@pytest.mark.parametrize(
    ("size", "mode", "colour", "fit", "fill"),
    [
        ((80, 20), "RGB", (250, 250, 250), PAD, WHITE_EDGES),
        ((20, 80), "L", 5, PAD, BLACK_EDGES),
        ((80, 20), "RGBA", (0, 0, 0, 255), PAD, CLEAR),
        ((40, 30), "RGB", (250, 250, 250), CROP, None),
        ((40, 40), "RGBA", (0, 0, 0, 255), None, CLEAR),
        ((40, 40), "RGB", (250, 250, 250), None, None),
    ],
    ids=["wide documents", "tall X-rays", "wide drawings", "photos", "square drawings", "squares"],
)
def test_the_summary_has_the_fit_and_the_background(
    size: tuple[int, int],
    mode: str,
    colour: Any,
    fit: str | None,
    fill: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Any,
) -> None:
    """The fit is printed if images are not square, the fill if they are padded or transparent."""
    monkeypatch.chdir(tmp_path)
    _write_shapes(Path("images"), size, mode, colour)
    code, out, _ = cli("new", "images")
    assert code == 0
    printed = {}
    for line in out.splitlines():
        if line.startswith("  ") and not line.startswith("  fedssl"):
            name, _, text = line.strip().partition(" ")
            printed[name] = text.strip()
    assert printed.get("fit") == fit
    assert printed.get("fill") == fill
    data: Any = load("images.toml").data
    assert data.fit == ("pad" if fit == PAD else "crop")
    assert data.background == ("white" if fill in (WHITE_EDGES, CLEAR) else "black")


def test_a_run_on_the_written_experiment_has_no_warning_of_cropping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    """With data.fit = "crop" instead of the written value, there is exactly one warning."""
    monkeypatch.chdir(tmp_path)
    stream = np.random.default_rng(0)
    Path("scans").mkdir()
    for number in range(16):
        noise = stream.integers(0, 256, (16, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(f"scans/{number}.png")
    assert cli("new", "scans")[0] == 0
    quick = ["--set", "rounds=1", "--device", "cpu"]
    code, _, err = cli("run", "scans.toml", *quick)
    assert (code, "data.fit" in err) == (0, False)
    code, _, err = cli("run", "scans.toml", *quick, "--set", "data.fit=crop")
    assert (code, err.count('set data.fit = "pad"')) == (0, 1)


def test_a_misspelled_path_is_corrected(photos: Path, cli: Any) -> None:
    code, _, err = cli("new", "fotos/")
    assert (code, err) == (3, 'fedssl: there is no folder fotos, did you mean "photos"?\n')
    assert not Path("fotos.toml").exists()
    assert cli("new", "photos")[0] == 0
    for args, problem in (
        (["run", "phtos.toml"], 'there is no file phtos.toml, did you mean "photos.toml"?'),
        (["run", "photos"], 'there is no recipe or file "photos", did you mean "photos.toml"?'),
        (["evaluate", "photo"], "there is no run directory photo"),
        (["runs", "fotos"], 'there is no folder fotos, did you mean "photos"?'),
        (["compare", "fotos"], 'there is no folder fotos, did you mean "photos"?'),
    ):
        assert cli(*args)[::2] == (2, f"fedssl: {problem}\n")
    for key in ("path", "test"):
        code, _, err = cli("partition", "photos.toml", "--set", f"data.{key}=fotos")
        assert code == 3
        assert err.endswith(f'working directory {Path.cwd()}, did you mean "photos"?\n')


def test_a_file_is_not_a_folder_of_images(photos: Path, cli: Any) -> None:
    Path("photos.zip").touch()
    code, _, err = cli("new", "photos.zip")
    assert (code, err) == (3, "fedssl: photos.zip is a file, not a folder\n")
