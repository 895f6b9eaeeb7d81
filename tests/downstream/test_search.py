"""The nearest images to a query."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_messages import raises
from PIL import Image

from fedssl.core.errors import ConfigError, DataError
from fedssl.downstream.backbone import load_backbone
from fedssl.downstream.embed import embed
from fedssl.downstream.search import Neighbour, draw_result, search

RED = (255, 0, 0)


@pytest.fixture
def folder(put_colour, tmp_path: Path) -> Path:
    """Red, dark red, yellow and blue: cosines with red of 1, 1, 1/√2 and 0."""
    put_colour("photos/1-blue.png", (0, 0, 255))
    put_colour("photos/2-yellow.png", (255, 255, 0))
    put_colour("photos/3-dark.png", (51, 0, 0))
    put_colour("photos/4-red.png", RED)
    return tmp_path / "photos"


def _find(backbone, query, folder, k):
    embeddings = embed(backbone, folder, notify=lambda line: None)
    found = search(backbone, query, embeddings, k, folder=folder)
    return [(each.rank, round(each.similarity, 4), each.name) for each in found]


def test_neighbours_are_ordered_by_their_cosine(write_backbone, put_colour, folder) -> None:
    backbone = load_backbone(write_backbone())
    query = put_colour("query.png", RED)
    expected = [
        (1, 1.0, "3-dark.png"),
        (2, 1.0, "4-red.png"),
        (3, 0.7071, "2-yellow.png"),
        (4, 0.0, "1-blue.png"),
    ]
    assert _find(backbone, query, folder, 3) == expected[:3]
    assert _find(backbone, query, folder, 9) == expected


def test_a_query_is_not_its_own_neighbour(write_backbone, folder) -> None:
    found = _find(load_backbone(write_backbone()), folder / "4-red.png", folder, 4)
    assert [name for _, _, name in found] == ["3-dark.png", "2-yellow.png", "1-blue.png"]


def test_a_query_is_not_its_own_neighbour_in_saved_features(
    write_backbone, put_colour, folder
) -> None:
    """The folder is not known: an image of the same name with other features is a neighbour."""
    backbone = load_backbone(write_backbone())
    embeddings = embed(backbone, folder, notify=lambda line: None)
    itself = search(backbone, folder / "4-red.png", embeddings)
    assert [each.name for each in itself] == ["3-dark.png", "2-yellow.png", "1-blue.png"]
    namesake = search(backbone, put_colour("4-red.png", (0, 255, 255)), embeddings)
    assert len(namesake) == 4


def test_features_of_another_backbone_are_rejected(write_backbone, put_colour, folder) -> None:
    embeddings = embed(load_backbone(write_backbone()), folder, notify=lambda line: None)
    other = load_backbone(write_backbone("other.safetensors", image=(3, 5, 5)))
    with raises(ConfigError):
        search(other, put_colour("query.png", RED), embeddings)
    with raises(ConfigError):
        search(other, put_colour("query.png", RED), embeddings, 0)


def test_the_picture_shows_the_query_and_its_neighbours(
    write_backbone, put_colour, folder, tmp_path: Path
) -> None:
    """The middles of the tiles have the colours of the files."""
    backbone = load_backbone(write_backbone())
    query = put_colour("query.png", RED)
    embeddings = embed(backbone, folder, notify=lambda line: None)
    draw_result(query, folder, search(backbone, query, embeddings, 4), tmp_path / "result.png")
    with Image.open(tmp_path / "result.png") as picture:
        middle = 43 + 64  # the tiles' first row begins after a line of text and two gaps
        colours = [picture.getpixel((292 + 140 * number + 64, middle)) for number in range(4)]
        assert colours == [(51, 0, 0), RED, (255, 255, 0), (0, 0, 255)]
        assert picture.getpixel((12 + 128, 43 + 128)) == RED


def test_transparent_turned_and_unreadable_images_in_a_picture(tmp_path: Path) -> None:
    """Transparent pixels are white; an image turned by EXIF is shown upright."""
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90°: stored wide, shown tall
    Image.new("RGB", (40, 20), RED).save(tmp_path / "turned.png", exif=exif)
    Image.new("RGBA", (10, 10), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    turned = [Neighbour(1, 1.0, "turned.png")]
    draw_result(tmp_path / "clear.png", tmp_path, turned, tmp_path / "out.png")
    with Image.open(tmp_path / "out.png") as picture:
        white = (255, 255, 255)
        assert picture.getpixel((12 + 128, 43 + 128)) == white
        assert picture.getpixel((292 + 64, 43 + 3)) == RED
        assert picture.getpixel((292 + 3, 43 + 64)) == white
    (tmp_path / "turned.png").write_bytes(b"nothing")
    with raises(DataError) as raised:
        draw_result(tmp_path / "clear.png", tmp_path, turned, tmp_path / "out.png")
    assert raised.value.detail == f"not an image: {tmp_path / 'turned.png'}"


def test_a_missing_query_is_named_with_a_similar_file(
    write_backbone, put_colour, folder, monkeypatch
) -> None:
    put_colour("query.png", RED)
    monkeypatch.chdir(folder.parent)
    backbone = load_backbone(write_backbone())
    embeddings = embed(backbone, folder, notify=lambda line: None)
    with pytest.raises(
        ConfigError, match=r'^there is no file qury\.png, did you mean "query\.png"\?$'
    ):
        search(backbone, "qury.png", embeddings)
