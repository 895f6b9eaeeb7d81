"""The warning about images that lose much by cropping, and the colour of their edges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedssl.data import Folder
from fedssl.data.aspect_ratio import cropping_warning, is_elongated, lost_share
from fedssl.data.edge_colour import have_light_edges
from fedssl.data.inspect_folder import inspect_folder
from fedssl.data.small_images import Header, small_images_warning


def _save(folder: Path, *sizes: tuple[int, int]) -> list[str]:
    """Write images of these widths and heights; return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number, size in enumerate(sizes):
        names.append(f"{number}.png")
        Image.effect_noise(size, 50).save(folder / names[-1])
    return names


@pytest.mark.parametrize(
    ("width", "height", "elongated"),
    [
        (64, 64, False),
        (4000, 3000, False),
        (595, 842, False),  # a page
        (6000, 4000, False),  # loses exactly a third
        (500, 333, False),  # the same, rounded
        (333, 500, False),
        (500, 332, True),
        (16, 10, True),
        (1920, 1080, True),
        (1, 10_000, True),
    ],
)
def test_more_than_a_third_is_much(width: int, height: int, elongated: bool) -> None:
    assert is_elongated(Header(width, height, "L")) == elongated


def test_the_share_outside_of_the_square() -> None:
    """A square of 30 in 40 × 30 has three quarters of the area."""
    assert lost_share(Header(40, 30, "L")) == 0.25
    assert lost_share(Header(30, 120, "L")) == 0.75


def test_the_median_image_counts(tmp_path: Path) -> None:
    """Two of four images are no majority; three of four lose 50, 60 and 80%."""
    names = _save(tmp_path, (20, 20), (20, 10), (50, 20), (10, 50), (20, 20))
    assert cropping_warning(tmp_path, [names[0], names[1], names[2], names[4]]) is None
    assert cropping_warning(tmp_path, names[:4]) == (
        "half of the images lose at least 50% of their area, because they are cropped to squares: "
        'see `fedssl views`, and set data.fit = "pad" to keep all of it'
    )


def test_files_that_cannot_be_read_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "bad.png").touch()
    assert cropping_warning(tmp_path, ["bad.png"]) is None
    assert cropping_warning(tmp_path, ["bad.png", *_save(tmp_path, (20, 10))]) is not None


def test_a_folder_warns_once_and_not_if_it_is_padded(tmp_path: Path) -> None:
    """Training and test images are both wide."""
    _save(tmp_path / "train/cat", (20, 10), (20, 10))
    _save(tmp_path / "test/cat", (20, 10), (20, 10))
    lines: list[str] = []
    folder = Folder(path=".", size=8, layout="classes", cache="off")
    folder.load(tmp_path, lines.append)
    assert sum("data.fit" in line for line in lines) == 1
    lines.clear()
    folder.model_copy(update={"fit": "pad"}).load(tmp_path, lines.append)
    assert not any("data.fit" in line for line in lines)


def test_the_longer_side_of_a_padded_image_is_scaled(tmp_path: Path) -> None:
    """The longer side is half of a size of 40, which gives no warning; the shorter is a quarter."""
    names = _save(tmp_path, (20, 10), (10, 20))
    assert small_images_warning(tmp_path, names, 40, pad=True) is None
    warning = small_images_warning(tmp_path, names, 40)
    assert warning is not None
    assert warning.endswith("set data.size = 10")


# -- the folder's summary --


def _frame(edge: int, middle: int, *, tall: bool = False) -> Image.Image:
    """An image of 60 × 20 whose long edges have one grey and the rest another."""
    pixels = np.full((20, 60), middle, np.uint8)
    pixels[:2] = edge
    pixels[-2:] = edge
    return Image.fromarray(pixels.T.copy() if tall else pixels)


@pytest.mark.parametrize("tall", [False, True])
def test_only_the_edges_next_to_the_border_count(tall: bool, tmp_path: Path) -> None:
    _frame(240, 10, tall=tall).save(tmp_path / "light.png")
    _frame(10, 240, tall=tall).save(tmp_path / "dark.png")
    (tmp_path / "damaged.png").write_bytes(b"x")
    assert have_light_edges(tmp_path, ["light.png", "damaged.png"])
    assert not have_light_edges(tmp_path, ["dark.png", "damaged.png"])
    assert not have_light_edges(tmp_path, ["dark.png", "light.png"])
    assert not have_light_edges(tmp_path, ["damaged.png"])


def test_edges_are_those_of_the_upright_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    _frame(240, 10).rotate(90, expand=True).save(tmp_path / "turned.png", exif=exif)
    assert have_light_edges(tmp_path, ["turned.png"])


@pytest.mark.parametrize(("edge", "light"), [(240, True), (10, False)])
def test_the_summary_of_wide_images(edge: int, light: bool, tmp_path: Path) -> None:
    """The sides in the summary are the longer ones, because padding scales these to the size."""
    for number in range(3):
        _frame(edge, 100).save(tmp_path / f"{number}.png")
    _save(tmp_path / "more", (30, 30))
    summary = inspect_folder(tmp_path, lambda line: None, "flat")
    assert (summary.fit, summary.elongated, summary.readable) == ("pad", 3, 4)
    assert summary.lost == pytest.approx(2 / 3)
    assert (summary.side, summary.smallest_side, summary.light_edges) == (60, 30, light)


def test_the_summary_of_images_that_are_nearly_square(tmp_path: Path) -> None:
    _save(tmp_path, (40, 30), (40, 30), (60, 20))
    summary = inspect_folder(tmp_path, lambda line: None)
    assert (summary.fit, summary.lost, summary.elongated) == ("crop", 0.25, 1)
    assert (summary.side, summary.smallest_side, summary.light_edges) == (30, 20, False)
