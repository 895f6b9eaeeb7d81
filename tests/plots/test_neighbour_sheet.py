"""The picture of a query and its neighbours."""

from __future__ import annotations

from PIL import Image, ImageFont

from fedssl.plots.neighbour_sheet import Captioned, draw_neighbours, shortened_name


def test_a_long_name_keeps_its_end() -> None:
    font = ImageFont.load_default(14)
    assert shortened_name("a.png", 128, font) == "a.png"
    name = shortened_name("folder/" * 20 + "photo.png", 128, font)
    assert name.startswith("…")
    assert name.endswith("photo.png")
    assert font.getlength(name) <= 128


def test_rows_of_six_fit_next_to_the_query(tmp_path) -> None:
    """Seven neighbours need two rows of 128 + 2·19 + 12 pixels below 43; twelve columns do not
    fit: 6 · (128 + 12) pixels after 12 + 256 + 24.
    """
    file = tmp_path / "grey.png"
    Image.new("L", (20, 10), 100).save(file)
    tile = Captioned(file, "1", "grey.png")
    draw_neighbours(tile, [tile] * 7, "title", tmp_path / "out.png")
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.size == (12 + 256 + 24 + 6 * 140, 43 + 2 * (128 + 38 + 12))


def test_transparent_and_turned_images(tmp_path) -> None:
    """Transparent pixels are white; an image turned by EXIF is shown upright."""
    Image.new("RGBA", (10, 10), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90°: stored wide, shown tall
    Image.new("RGB", (40, 20), (255, 0, 0)).save(tmp_path / "turned.png", exif=exif)
    clear = Captioned(tmp_path / "clear.png", "", "")
    turned = Captioned(tmp_path / "turned.png", "", "")
    draw_neighbours(clear, [turned], "", tmp_path / "out.png")
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.getpixel((12 + 128, 43 + 128)) == (255, 255, 255)
        left, top = 292, 43
        assert picture.getpixel((left + 64, top + 3)) == (255, 0, 0)
        assert picture.getpixel((left + 3, top + 64)) == (255, 255, 255)
