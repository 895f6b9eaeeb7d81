import io
import struct
import warnings
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from fedssl.data import decode as rules
from fedssl.data.decode import Unreadable
from fedssl.data.decode_parallel import decode_all


def decode(source, size: int, channels: int = 3) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(rules.decode(source, size, channels))


def file(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def picture(rows, mode: str) -> Image.Image:
    """A 2 × 2 image from four pixels, row by row."""
    image = Image.new(mode, (2, 2))
    image.putdata(rows)
    return image


def pixels(data: bytes, size: int = 2, channels: int = 3) -> list:
    """Row by row, as tuples of channels."""
    return list(map(tuple, decode(data, size, channels).flatten(1).T.tolist()))


def palette() -> Image.Image:
    image = picture([0, 1, 2, 1], "P")
    image.putpalette([255, 0, 0, 0, 200, 0, 10, 20, 30])
    return image


def greys(*values: int) -> list[tuple[int, int, int]]:
    return [(value, value, value) for value in values]


RED = (255, 0, 0)
GREEN = (0, 200, 0)
DARK = (10, 20, 30)
BLACK = (0, 0, 0)
WHITE = (255, 255, 255)


GOLDEN = {
    "L": (file(picture([0, 7, 128, 255], "L")), greys(0, 7, 128, 255)),
    # 200 · 128 / 255 = 100.4 over black
    "LA": (
        file(picture([(200, 255), (200, 128), (200, 0), (9, 255)], "LA")),
        greys(200, 100, 0, 9),
    ),
    "1": (file(picture([0, 255, 255, 0], "1")), [BLACK, WHITE, WHITE, BLACK]),
    "P": (file(palette()), [RED, GREEN, DARK, GREEN]),
    "P, one colour clear": (file(palette(), transparency=1), [RED, BLACK, DARK, BLACK]),
    # GREEN · 51 / 255 = a fifth
    "P, alpha per colour": (
        file(palette(), transparency=bytes([255, 51, 0])),
        [RED, (0, 40, 0), BLACK, (0, 40, 0)],
    ),
    "RGB": (file(picture([RED, GREEN, DARK, WHITE], "RGB")), [RED, GREEN, DARK, WHITE]),
    "RGB, one colour clear": (
        file(picture([RED, GREEN, DARK, WHITE], "RGB"), transparency=WHITE),
        [RED, GREEN, DARK, BLACK],
    ),
    "RGBA": (
        file(picture([(*RED, 255), (*GREEN, 51), (*WHITE, 0), (*DARK, 255)], "RGBA")),
        [RED, (0, 40, 0), BLACK, DARK],
    ),
    # Inks take light away: no ink is white, all cyan leaves no red, half black leaves half.
    "CMYK": (
        file(
            picture([(0, 0, 0, 0), (255, 0, 0, 0), (0, 0, 0, 255), (0, 0, 0, 127)], "CMYK"), "TIFF"
        ),
        [WHITE, (0, 255, 255), BLACK, (128, 128, 128)],
    ),
    "GIF, first frame": (
        file(palette(), "GIF", save_all=True, append_images=[Image.new("P", (2, 2))]),
        [RED, GREEN, DARK, GREEN],
    ),
    "GIF, clear": (file(palette(), "GIF", transparency=0), [BLACK, GREEN, DARK, GREEN]),
}


@pytest.mark.rows("D2")
@pytest.mark.parametrize("name", GOLDEN)
def test_every_mode_becomes_a_defined_rgb(name):
    data, expected = GOLDEN[name]
    assert pixels(data) == expected


@pytest.mark.rows("D2")
def test_one_channel_is_luminance():
    # ITU-R 601: 0.299 R + 0.587 G + 0.114 B
    assert pixels(GOLDEN["RGB"][0], channels=1) == [(76,), (117,), (18,), (255,)]
    assert pixels(GOLDEN["L"][0], channels=1) == [(0,), (7,), (128,), (255,)]


RAMP = np.arange(256 * 256).reshape(256, 256)


@pytest.mark.rows("D3")
@pytest.mark.parametrize(
    "image",
    [
        Image.fromarray(RAMP.astype(np.uint16)),
        Image.fromarray((RAMP // 16).astype(np.uint16)),  # a 12-bit camera
        Image.fromarray(RAMP.astype(np.int32) * 1000 - 5),
        Image.fromarray(RAMP.astype(np.float32) / 65535),
        Image.fromarray(RAMP.astype(np.float32) * -1e6),
    ],
    ids=["16 bits", "12 of 16 bits", "32 bits", "0 to 1", "negative"],
)
def test_deep_images_are_rescaled_by_their_range(image):
    values = decode(file(image, "TIFF"), 256)[0]
    assert len(values.unique()) == 256
    assert (values.min(), values.max()) == (0, 255)
    steps = values.flatten().int().diff()
    assert bool((steps >= 0).all()) or bool((steps <= 0).all())


@pytest.mark.rows("D3")
def test_sixteen_bit_png_golden():
    image = Image.fromarray(np.array([[1000, 1000 + 51], [1000 + 102, 1000 + 255]], np.uint16))
    assert pixels(file(image), channels=1) == [(0,), (51,), (102,), (255,)]


def test_deep_images_of_one_value_are_black_and_those_with_nan_refused():
    assert decode(file(Image.fromarray(np.full((4, 4), 9000, np.uint16))), 4).max() == 0
    for bad in (np.nan, np.inf):
        values = np.zeros((2, 2), np.float32)
        values[0, 0] = bad
        with pytest.raises(Unreadable, match="not finite"):
            decode(file(Image.fromarray(values), "TIFF"), 2)


UPRIGHT = np.arange(1, 7, dtype=np.uint8).reshape(2, 3) * 40
# How a camera stores the upright image for each orientation (EXIF 2.32, tag 0x0112).
STORED = {
    1: UPRIGHT,
    2: UPRIGHT[:, ::-1],
    3: UPRIGHT[::-1, ::-1],
    4: UPRIGHT[::-1],
    5: UPRIGHT.T,
    6: np.rot90(UPRIGHT, 1),
    7: UPRIGHT[::-1, ::-1].T,
    8: np.rot90(UPRIGHT, -1),
}


@pytest.mark.rows("D4")
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", STORED)
def test_exif_orientation_is_applied(orientation, kind):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = file(Image.fromarray(np.ascontiguousarray(STORED[orientation])), kind, exif=exif)
    # The centred square of the upright image: its first two columns.
    assert decode(data, 2, 1)[0].tolist() == UPRIGHT[:, :2].tolist()


def test_garbled_exif_does_not_cost_the_image():
    data = file(
        Image.new("RGB", (4, 4), RED),
        "PNG",
        exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12 garbled",
    )
    assert pixels(data, 1) == [RED]


def header_only_png(side: int) -> bytes:
    """A PNG that announces side × side pixels and holds none."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.rows("D5")
@pytest.mark.parametrize("side", [7072, 9000, 12000, 20000, 60000])
def test_bombs_are_refused_from_the_header(side, monkeypatch):
    def load(_):
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    with pytest.raises(Unreadable, match="more than 50,000,000 pixels"):
        decode(header_only_png(side), 32)


@pytest.mark.rows("D5")
def test_just_below_the_limit_is_not_a_bomb():
    # The header is accepted; then the pixels are missing.
    with pytest.raises(Unreadable, match="truncated or damaged"):
        decode(header_only_png(7071), 32)


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
WHOLE = file(NOISE)
JPEG = file(NOISE, "JPEG")


@pytest.mark.rows("D1")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty file"),
        (b"a text\n", "not an image"),
        (WHOLE[:20], "not an image"),
        (WHOLE[: len(WHOLE) // 2], "truncated or damaged"),
        (JPEG[: len(JPEG) // 2], "truncated or damaged"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "not an image"),
    ],
)
def test_bad_files_are_refused_with_a_reason(data, message, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(data)
    for source in (data, path):
        with pytest.raises(Unreadable, match=message):
            decode(source, 8)


def test_a_missing_file_is_unreadable(tmp_path):
    with pytest.raises(Unreadable, match="cannot be opened"):
        decode(tmp_path / "none", 8)


@pytest.mark.rows("D6")
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 33), st.sampled_from([1, 3]))
def test_any_shape_is_scaled(width, height, size, channels):
    """An image of one colour keeps its colour, for any shape."""
    out = decode(file(Image.new("RGB", (width, height), (77, 77, 77))), size, channels)
    assert out.shape == (channels, size, size)
    assert out.dtype == torch.uint8
    assert out.unique().tolist() == [77]


@pytest.mark.rows("D6")
@pytest.mark.parametrize("shape", [(1, 1), (1, 10_000), (10_000, 1), (3, 7000)])
def test_extreme_shapes_cost_little(shape):
    assert decode(file(Image.new("L", shape, 5)), 224).unique().tolist() == [5]


def test_scaling_keeps_the_centre_and_averages():
    # 2 × 4: the centre is 100, 200
    columns = np.repeat(np.array([[10, 100, 200, 20]], np.uint8), 2, 0)
    data = file(Image.fromarray(columns))
    assert decode(data, 2, 1)[0].tolist() == [[100, 200]] * 2
    assert decode(data, 1, 1).item() == 150
    # Without antialias some pixels would be 0 or 255.
    checkered = np.indices((64, 64)).sum(0) % 2 * 255
    small = decode(file(Image.fromarray(checkered.astype(np.uint8))), 16, 1)
    assert small.min() >= 120
    assert small.max() <= 135


def test_many_files_keep_their_order_and_bad_ones_their_places():
    sources = {str(k): file(Image.new("L", (1, 1), k)) for k in range(100)}
    sources["31"] = b""
    sources["64"] = b"x"
    messages = []
    out, bad = decode_all(list(sources), sources.__getitem__, 1, 1, messages.append)
    assert bad == {31: "empty file", 64: "not an image"}
    assert out.flatten().tolist() == [*range(31), *range(32, 64), *range(65, 100)]
    assert messages == ["decoding 100 images"]
