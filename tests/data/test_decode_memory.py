"""Decoding one image takes at most four times the bytes of its pixels, plus 50 MB."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from fedssl.data import decode
from fedssl.data.decode_whole import decode_whole

SIDE = 7071  # just below 50 megapixels

# Imported by their paths, as workers do, without torch.
MEASURE = f"""
import importlib.util, resource, sys, warnings
from pathlib import Path
for name in ("decode", "decode_whole"):
    path = Path({decode.__file__!r}).with_name(name + ".py")
    spec = importlib.util.spec_from_file_location("fedssl.data." + name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
assert "torch" not in sys.modules
decode = sys.modules["fedssl.data.decode"]
warnings.simplefilter("ignore")
decode._supported_formats()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[2] == "whole":
    module.decode_whole(Path(sys.argv[1]), (int(sys.argv[3]), int(sys.argv[3])))
else:
    decode.decode(Path(sys.argv[1]), 32, pad=sys.argv[2] == "pad")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def _stripes(dtype: type) -> Image.Image:
    values = np.zeros((SIDE, SIDE), dtype)
    values[::100] = 200
    return Image.fromarray(values)


def _exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def _float_frames(path: Path) -> None:
    frame = _stripes(np.float32)
    frame.save(path, "TIFF", compression="tiff_deflate", save_all=True, append_images=[frame])


def _webp(path: Path) -> None:
    _stripes(np.uint8).convert("RGB").save(path, "WEBP", lossless=True, method=0)


# A file that is small on disk, and the bytes of one of its pixels once decoded.
FILES: dict[str, tuple[Callable[[Path], object], int]] = {
    "16-bit PNG": (lambda path: _stripes(np.uint16).save(path, "PNG"), 2),
    "float TIFF with two frames": (_float_frames, 4),
    "palette PNG with transparency": (
        lambda path: _stripes(np.uint8).convert("P").save(path, "PNG", transparency=3),
        1,
    ),
    "RGBA PNG": (lambda path: _stripes(np.uint8).convert("RGBA").save(path, "PNG"), 4),
    "rotated JPEG": (
        lambda path: _stripes(np.uint8).convert("RGB").save(path, "JPEG", exif=_exif(6)),
        3,
    ),
    "WebP": (_webp, 4),
}


def _memory(path: Path, *how: str) -> int:
    command = [sys.executable, "-c", MEASURE, str(path), *how]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


QUICK = ("16-bit PNG", "float TIFF with two frames", "palette PNG with transparency")
CASES = [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in FILES]


@pytest.mark.rows("D11")
@pytest.mark.parametrize("kind", CASES)
def test_memory_of_a_large_image_is_bounded_by_its_pixels(kind: str, tmp_path: Path) -> None:
    save, pixel_bytes = FILES[kind]
    save(tmp_path / "file")
    assert (tmp_path / "file").stat().st_size < 2_000_000
    limit = 4 * pixel_bytes * SIDE * SIDE + 50_000_000
    assert _memory(tmp_path / "file", "square") <= limit


@pytest.mark.rows("D11")
@pytest.mark.parametrize(
    "shape",
    [(2 * SIDE, SIDE // 2), pytest.param((decode.MAX_PADDED_SIDE, 50), marks=pytest.mark.slow)],
    ids=["wide", "widest"],
)
def test_memory_of_a_padded_image_is_bounded_by_its_pixels(
    shape: tuple[int, int], tmp_path: Path
) -> None:
    """All of it is converted, from a palette with a clear colour to three planes."""
    Image.new("P", shape, 7).save(tmp_path / "file", "PNG", transparency=3)
    limit = 4 * shape[0] * shape[1] + 50_000_000
    assert _memory(tmp_path / "file", "pad") <= limit


@pytest.mark.rows("D11")
@pytest.mark.slow
def test_memory_of_an_annotated_image_is_bounded_by_its_pixels(tmp_path: Path) -> None:
    """`decode_whole` returns three bytes of RGB for each pixel, which is stored as a float."""
    _float_frames(tmp_path / "file")
    assert _memory(tmp_path / "file", "whole", str(SIDE)) <= 4 * 4 * SIDE * SIDE + 50_000_000


NOISE = np.random.default_rng(0).integers(0, 256, (41, 57, 4), np.uint8)
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I", "F", "I;16")


def _image(mode: str) -> Image.Image:
    if mode == "I;16":
        return Image.fromarray(NOISE[..., 0].astype(np.uint16) * 256 + NOISE[..., 1])
    if mode in ("I", "F"):
        return Image.fromarray(NOISE[..., 0].astype(np.int32) * 1000 - 77).convert(mode)
    return Image.fromarray(NOISE).convert(mode)


def _file(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", [*MODES, "P, one colour clear", "L, one grey clear"])
def test_strips_give_the_pixels_of_the_whole_image(
    mode: str, channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = mode.partition(",")[0]
    options = {"transparency": 3} if "clear" in mode else {}
    path = tmp_path / "file"
    path.write_bytes(_file(_image(plain), "PNG" if options else "TIFF", **options))
    whole = decode.decode(path, 7, channels)
    padded = decode.decode(path, 7, channels, pad=True)
    every = decode_whole(path, (57, 41), channels)
    monkeypatch.setattr(decode, "STRIP_PIXELS", 100)  # two rows of 41 or one of 57
    assert np.array_equal(decode.decode(path, 7, channels), whole)
    assert np.array_equal(decode.decode(path, 7, channels, pad=True), padded)
    assert np.array_equal(decode_whole(path, (57, 41), channels), every)
    assert len(np.unique(whole)) > 10  # the image is not blank


def test_a_value_that_is_not_finite_is_found_in_any_strip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "STRIP_PIXELS", 8)
    values = np.zeros((8, 8), np.float32)
    values[5, 5] = np.nan
    with pytest.raises(decode.Unreadable, match="not finite"):
        decode.decode(_file(Image.fromarray(values), "TIFF"), 2)


def test_jpeg_2000_has_a_lower_limit_of_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its decoder takes up to 24 bytes a pixel, more than Pillow stores."""
    monkeypatch.setitem(decode.MAX_PIXELS_BY_FORMAT, "JPEG2000", 8 * 8 - 1)
    image = Image.new("RGB", (8, 8), (9, 9, 9))
    with pytest.raises(decode.Unreadable, match="more than 63 pixels"):
        decode.decode(_file(image, "JPEG2000"), 2)
    assert decode.decode(_file(image, "PNG"), 2).max() == 9


def test_too_little_memory_does_not_mark_the_file_as_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache records lasting reasons only: with more memory, the file is decoded again."""

    def load(image: ImageFile.ImageFile) -> None:
        raise MemoryError

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    with pytest.raises(decode.Unreadable, match="too little memory") as refused:
        decode.decode(_file(Image.new("L", (8, 8)), "PNG"), 2)
    assert not refused.value.lasting
