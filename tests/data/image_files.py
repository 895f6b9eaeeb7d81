"""Image files of one grey, and a cache of them."""

from PIL import Image

from fedssl.data import Folder
from fedssl.data.cache import decode_cached


def put(root, name: str, grey: int) -> None:
    """Write a PNG of 2 × 2 pixels of one grey."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (2, 2), grey).save(path, "PNG")


def load(root, layout="flat", **options):
    """Load a folder of such files."""
    return Folder(path=".", size=2, channels=1, layout=layout, **options).load(root, lambda _: None)


def greys(images) -> list[int]:
    """Return the grey of each image."""
    return images.pixels[:, 0, 0, 0].tolist()


def cache_dir(photos):
    """Return the directory of all caches."""
    return photos.parent / "cache"


def home(photos):
    """Return the directory of the only cache."""
    (only,) = cache_dir(photos).iterdir()
    return only


def read_cached(photos, size: int = 2, notify=lambda _: None):
    """Read all files of the folder through the cache."""
    names = sorted(path.name for path in photos.iterdir())
    return decode_cached(photos, names, size, 1, cache_dir=cache_dir(photos), notify=notify)


def cached_greys(photos) -> list[int]:
    """Return the grey of each cached image."""
    return read_cached(photos)[0].tensor()[:, 0, 0, 0].tolist()
