"""Images that are no squares: cropped, or padded with the background."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factories import make_experiment, random_pixels
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import fedssl
from fedssl import nets
from fedssl.core.errors import ConfigError
from fedssl.data import Dataset, Folder, Images, decode_parallel
from fedssl.data import decode as rules
from fedssl.evaluation.transfer import other_images
from fedssl.experiment.experiment import Experiment

WIDE = np.array([[10, 20, 30, 40], [50, 60, 70, 80]], np.uint8)
# A square of four pixels a side: the image is in the middle.
PADDED = {
    "black": [[0] * 4, WIDE[0].tolist(), WIDE[1].tolist(), [0] * 4],
    "white": [[255] * 4, WIDE[0].tolist(), WIDE[1].tolist(), [255] * 4],
}
CROPPED = [[20, 30], [60, 70]]


def _file(pixels: np.ndarray[Any, Any], kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def _pad(data: bytes, size: int, background: int = 0, channels: int = 1) -> np.ndarray[Any, Any]:
    return rules.decode(data, size, channels, background, pad=True)


def _scans(folder: Path, count: int = 3) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.fromarray(WIDE).save(folder / f"{number}.png")
    return folder


def _photos(folder: Path) -> Path:
    """Sixteen images of grey noise, 16 × 8, none of whose pixels is black or white."""
    folder.mkdir()
    noise = random_pixels(16, channels=1, size=16)[:, 0, :8].clamp(1, 254)
    for number, image in enumerate(noise):
        Image.fromarray(image.numpy()).save(folder / f"{number}.png")
    return folder


# -- pixels --


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("background", "grey"), [("black", 0), ("white", 255)])
def test_all_of_a_wide_image_is_kept(background: str, grey: int, channels: int) -> None:
    pixels = _pad(_file(WIDE), 4, grey, channels)
    assert pixels.tolist() == [PADDED[background]] * channels


def test_a_tall_image_has_its_border_at_the_sides() -> None:
    assert _pad(_file(WIDE.T.copy()), 4)[0].T.tolist() == PADDED["black"]


def test_the_orientation_is_applied_before_padding() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned by 90° anticlockwise
    data = _file(np.rot90(WIDE).copy(), exif=exif)
    assert _pad(data, 4)[0].tolist() == PADDED["black"]


def test_an_odd_border_has_its_larger_half_below() -> None:
    rows = _pad(_file(WIDE[:1]), 4, 255)[0].tolist()
    assert rows == [[255] * 4, WIDE[0].tolist(), [255] * 4, [255] * 4]


def test_clear_pixels_have_the_colour_of_the_border() -> None:
    image = np.zeros((2, 4, 4), np.uint8)
    assert (_pad(_file(image), 4, 255) == 255).all()


def test_deep_images_are_rescaled_by_the_range_of_the_whole_image() -> None:
    """The centred square has the values 120 to 170, the image 110 to 180."""
    data = _file(WIDE.astype(np.uint16) + 100)
    assert _pad(data, 4)[0, 1:3].min() == 0
    assert _pad(data, 4)[0, 1:3].max() == 255


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 33))
def test_proportions_are_kept(width: int, height: int, size: int) -> None:
    """The longer side has all pixels, the shorter its share, rounded, and at least one."""
    pixels = _pad(_file(np.full((height, width), 77, np.uint8)), size)[0]
    longer = max(width, height)
    rows = max(1, round(size * height / longer))
    columns = max(1, round(size * width / longer))
    assert np.count_nonzero(pixels == 77) == rows * columns
    assert np.count_nonzero(pixels == 0) == size * size - rows * columns
    assert (pixels.any(1).sum(), pixels.any(0).sum()) == (rows, columns)


@pytest.mark.parametrize("side", [1, 3, 50])
def test_a_square_is_not_changed(side: int) -> None:
    data = _file(np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8))
    assert np.array_equal(_pad(data, 8, 255, 3), rules.decode(data, 8, 3))


def test_an_image_that_is_too_long_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_PADDED_SIDE", 3)
    with pytest.raises(rules.Unreadable, match="longer than 3 pixels"):
        _pad(_file(WIDE), 4)
    assert rules.decode(_file(WIDE), 2, 1)[0].tolist() == CROPPED


# -- folders and caches --


def _load(root: Path, **options: Any) -> list[Any]:
    size = 4 if options.get("fit") == "pad" else 2
    folder = Folder(path=".", size=size, channels=1, layout="flat", **options)
    pixels = folder.load(root, lambda line: None).train.pixels
    assert len(pixels.unique(dim=0)) == 1
    return list(pixels[0, 0].tolist())


@pytest.mark.parametrize("fewest", [1, 500], ids=["processes", "threads"])
@pytest.mark.parametrize("cache", ["auto", "off"])
def test_a_folder_is_cropped_or_padded(
    cache: str, fewest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_parallel, "MIN_FILES_FOR_PROCESSES", fewest)
    folder = _scans(tmp_path / "scans")
    options = {"cache": str(tmp_path / "cache") if cache == "auto" else cache}
    assert _load(folder, **options) == CROPPED
    assert _load(folder, fit="pad", **options) == PADDED["black"]
    assert _load(folder, fit="pad", background="white", **options) == PADDED["white"]


def test_every_fit_has_its_own_cache(tmp_path: Path) -> None:
    """Those of cropped images are the caches of earlier versions."""
    folder = _scans(tmp_path / "scans")
    cache = tmp_path / "cache"
    settings = [{"fit": "crop"}, {"fit": "pad"}, {"fit": "pad", "background": "white"}]
    pixels = []
    for options in [*settings, *settings]:
        source = Folder(path=".", size=4, channels=1, layout="flat", cache=str(cache), **options)
        pixels.append(source.load(folder, lambda line: None).train.pixels.clone())
    assert len(list(cache.iterdir())) == 3
    for first, second in zip(pixels[:3], pixels[3:], strict=True):
        assert torch.equal(first, second)
    identity = json.dumps([str(folder.resolve()), 4, 1, rules.RULES]).encode()
    assert (cache / hashlib.sha256(identity).hexdigest()[:16]).is_dir()


# -- experiments and runs --


def _experiment(folder: Path, **data: Any) -> Experiment:
    table = {"name": "folder", "path": str(folder), "layout": "flat", "size": 8, "cache": "off"}
    return make_experiment(rounds=1, clients=2, data={**table, **data}, train__batch=8)


@pytest.mark.parametrize("table", ["data", "public"])
def test_the_hash_is_that_of_earlier_versions(table: str) -> None:
    """Recorded before the setting was added; another value is another experiment."""
    values: dict[str, Any] = {"partition": "natural", "method": "simclr"}
    values["data"] = {"name": "folder", "path": "p", "layout": "clients", "size": 32}
    if table == "public":
        values["algorithm"] = "fedca"
        values["public"] = {"name": "folder", "path": "q", "layout": "flat", "size": 32}
    experiment = Experiment.from_dict(values)
    recorded = {"data": "0ab0758665fb4613", "public": "5d24e9e5aade37df"}
    assert experiment.hash()[:16] == recorded[table]
    assert experiment.with_changes({f"{table}.fit": "crop"}).hash() == experiment.hash()
    changed = experiment.with_changes({f"{table}.fit": "pad"})
    assert changed.hash() != experiment.hash()
    assert Experiment.from_toml(changed.to_toml()) == changed


def test_a_run_keeps_its_fit(tmp_path: Path) -> None:
    """Input images are padded as in training; another fit is another experiment."""
    folder = _photos(tmp_path / "photos")
    padded = _experiment(folder, fit="pad", background="white")
    run = fedssl.run(padded, tmp_path / "run", "cpu", quiet=True)
    pixels = run.data(lambda line: None).train.pixels
    assert (pixels[:, :, [0, 1, 6, 7]] == 255).all()
    assert (pixels[:, :, 2:6] < 255).all()
    torch.testing.assert_close(run.load_images(sorted(folder.iterdir())), pixels / 255)
    with pytest.raises(ConfigError, match=r"data\.fit: 'pad' in that run, 'crop' now"):
        fedssl.run(_experiment(folder, background="white"), tmp_path / "run", "cpu", quiet=True)


def test_the_header_of_a_backbone_has_the_fit(tmp_path: Path) -> None:
    """And the background, which is also under transparent pixels of cropped images."""
    folder = _photos(tmp_path / "photos")
    headers = {}
    for fit in ("crop", "pad"):
        run = fedssl.run(_experiment(folder, fit=fit), tmp_path / fit, "cpu", quiet=True)
        headers[fit] = nets.read_weights(run.dir / "backbone.safetensors")[0]
        assert (headers[fit]["fit"], headers[fit]["background"]) == (fit, "black")


def test_other_files_are_padded_like_those_of_the_run(tmp_path: Path) -> None:
    _scans(tmp_path / "scans" / "cat")
    on = {"name": "folder", "path": "scans", "layout": "classes", "cache": "off"}

    def pixels(**table: Any) -> list[Any]:
        found = other_images(
            {**on, **table},
            (1, 4, 4),
            tmp_path,
            lambda line: None,
            background="white",
            fit="pad",
        )
        return list(found.train.pixels[0, 0].tolist())

    assert pixels() == PADDED["white"]
    assert pixels(background="black") == PADDED["black"]
    assert pixels(fit="crop") == rules.decode(_file(WIDE), 4, 1)[0].tolist()


def test_other_images_in_memory_are_padded_like_files(tmp_path: Path) -> None:
    images = Images(torch.from_numpy(WIDE)[None, None])
    found = other_images(
        Dataset(images), (1, 4, 4), tmp_path, lambda line: None, background="white", fit="pad"
    )
    assert found.train.pixels[0, 0].tolist() == PADDED["white"]
