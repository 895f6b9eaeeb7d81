"""The font of pictures that are drawn without matplotlib."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

DEJAVU = "DejaVuSans.ttf"  # Latin with all accents, Greek, Cyrillic, Arabic and more


@cache
def text_font(size: int) -> Font:
    """Return a font for names of files and clients; `size` is in pixels.

    Pillow's own font has no letters with accents. It is used only where DejaVu Sans is neither
    installed in the system nor with matplotlib.
    """
    for place in (_of_matplotlib(), DEJAVU):
        try:
            return ImageFont.truetype(place, size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def _of_matplotlib() -> str:
    """Return the path of the font in matplotlib's package, which is not imported."""
    package = find_spec("matplotlib")
    if package is None or package.origin is None:
        return DEJAVU
    return str(Path(package.origin).parent / "mpl-data" / "fonts" / "ttf" / DEJAVU)
