"""The colour under transparent pixels of image files."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from factories import make_experiment
from PIL import Image

import fedssl
from fedssl.core.errors import ConfigError
from fedssl.data import Folder, decode_parallel
from fedssl.data import decode as rules
from fedssl.data.inspect_folder import inspect_folder
from fedssl.evaluation.transfer import other_images
from fedssl.experiment.experiment import Experiment

GREY_ON_CLEAR = [(0, 0), (0, 51), (200, 51), (200, 255)]  # grey and alpha
# grey · alpha / 255 + background · (255 - alpha) / 255, where 51 / 255 is a fifth
OVER = {"black": [0, 0, 40, 200], "white": [255, 204, 244, 200]}


def _picture(mode: str) -> Image.Image:
    image = Image.new("LA", (2, 2))
    image.putdata(GREY_ON_CLEAR)
    return image.convert(mode)


def _drawings(folder: Path, count: int = 3) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        _picture("RGBA").save(folder / f"{number}.png")
    return folder


def _load(root: Path, background: str, **options: Any) -> torch.Tensor:
    folder = Folder(path=".", size=2, layout="flat", background=background, **options)
    return folder.load(root, lambda line: None).train.pixels


def _expected(background: str, count: int = 3) -> torch.Tensor:
    image = torch.tensor(OVER[background], dtype=torch.uint8).view(1, 1, 2, 2)
    return image.expand(count, 3, 2, 2)


@pytest.mark.parametrize("strip", [1, rules.STRIP_PIXELS], ids=["strips", "whole"])
@pytest.mark.parametrize("mode", ["LA", "RGBA"])
@pytest.mark.parametrize(("background", "grey"), [("black", 0), ("white", 255)])
def test_pixels_are_mixed_with_it_by_their_alpha(
    background: str, grey: int, mode: str, strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "STRIP_PIXELS", strip)
    out = io.BytesIO()
    _picture(mode).save(out, "PNG")
    for channels in (1, 3):
        pixels = rules.decode(out.getvalue(), 2, channels, grey)
        assert pixels.reshape(channels, 4).tolist() == [OVER[background]] * channels


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_clear_colour_of_a_palette(kind: str) -> None:
    image = Image.new("P", (2, 2))
    image.putdata([0, 1, 1, 0])
    image.putpalette([10, 10, 10, 20, 20, 20])
    out = io.BytesIO()
    image.save(out, kind, transparency=1)
    assert rules.decode(out.getvalue(), 2, 1, 255).flatten().tolist() == [10, 255, 255, 10]


def test_opaque_images_do_not_depend_on_it(tmp_path: Path) -> None:
    _picture("L").save(tmp_path / "0.png")
    assert torch.equal(_load(tmp_path, "white"), _load(tmp_path, "black"))


@pytest.mark.parametrize("fewest", [1, 500], ids=["processes", "threads"])
@pytest.mark.parametrize("cache", ["auto", "off"])
def test_a_folder_is_decoded_over_it(
    cache: str, fewest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of one background is not used for the other."""
    monkeypatch.setattr(decode_parallel, "MIN_FILES_FOR_PROCESSES", fewest)
    folder = _drawings(tmp_path / "drawings")
    options = {"cache": str(tmp_path / "cache") if cache == "auto" else cache}
    for background in ("black", "white", "black"):
        assert torch.equal(_load(folder, background, **options), _expected(background))


def test_caches_of_black_are_those_of_earlier_versions(tmp_path: Path) -> None:
    folder = _drawings(tmp_path / "drawings")
    _load(folder, "black", cache=str(tmp_path / "cache"))
    identity = json.dumps([str(folder.resolve()), 2, 3, rules.RULES]).encode()
    (home,) = (tmp_path / "cache").iterdir()
    assert home.name == hashlib.sha256(identity).hexdigest()[:16]


# -- experiments and runs --


def _experiment(folder: Path, **data: Any) -> Experiment:
    table = {"name": "folder", "path": str(folder), "layout": "flat", "size": 8, "cache": "off"}
    return make_experiment(rounds=1, clients=2, data={**table, **data}, train__batch=2)


@pytest.mark.parametrize(
    "values",
    [
        {"partition": "natural", "method": "simclr"},
        {
            "partition": "natural",
            "method": "simclr",
            "algorithm": "fedca",
            "public": {"name": "folder", "path": "q", "layout": "flat", "size": 32},
        },
    ],
    ids=["data", "public"],
)
def test_the_hash_is_that_of_earlier_versions(values: dict[str, Any]) -> None:
    """Recorded before the setting was added; another value is another experiment."""
    data = {"name": "folder", "path": "p", "layout": "clients", "size": 32}
    experiment = Experiment.from_dict({**values, "data": data})
    table = "public" if "public" in values else "data"
    recorded = {"data": "0ab0758665fb4613", "public": "5d24e9e5aade37df"}
    assert experiment.hash()[:16] == recorded[table]
    changed = experiment.with_changes({f"{table}.background": "white"})
    assert changed.hash() != experiment.hash()
    assert Experiment.from_toml(changed.to_toml()) == changed


def test_a_run_keeps_its_background(tmp_path: Path) -> None:
    """Input images are decoded as in training; another background is another experiment."""
    folder = _drawings(tmp_path / "drawings", 6)
    white = _experiment(folder, background="white")
    run = fedssl.run(white, tmp_path / "run", "cpu", quiet=True)
    pixels = run.data(lambda line: None).train.pixels
    assert pixels.max() == 255
    torch.testing.assert_close(run.load_images(sorted(folder.iterdir())), pixels / 255)
    with pytest.raises(ConfigError, match=r"data\.background: 'white' in that run, 'black' now"):
        fedssl.run(_experiment(folder), tmp_path / "run", "cpu", quiet=True)


def test_other_images_are_decoded_over_that_of_the_run(tmp_path: Path) -> None:
    _drawings(tmp_path / "drawings" / "cat")
    on = {"name": "folder", "path": "drawings", "layout": "classes", "cache": "off"}

    def pixels(table: dict[str, Any]) -> torch.Tensor:
        return other_images(
            table, (3, 2, 2), tmp_path, lambda line: None, background="white"
        ).train.pixels

    assert torch.equal(pixels(on), _expected("white"))
    assert torch.equal(pixels({**on, "background": "black"}), _expected("black"))


def test_transparent_files_are_counted_from_their_headers(tmp_path: Path) -> None:
    folder = _drawings(tmp_path / "drawings")
    palette = Image.new("P", (2, 2))
    palette.save(folder / "clear.png", transparency=0)
    palette.save(folder / "clear.gif", transparency=0)
    palette.save(folder / "opaque.png")
    _picture("L").save(folder / "grey.png")
    summary = inspect_folder(folder, lambda line: None)
    assert (summary.transparent, summary.sampled) == (5, 7)
