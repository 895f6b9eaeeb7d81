"""Count views that show one colour only, from which a method learns nothing."""

from __future__ import annotations

from torch import Tensor

from fedssl.core.seeds import generator
from fedssl.views import ViewGroup, draw, make_views

IMAGES = 128  # that are sampled
VIEWS = 4  # of each image
MIN_SPREAD = 0.02  # standard deviation of a channel in a view of several colours, of 0…1
MIN_SHARE = 0.03  # of the views, from which they are reported


def plain_share(images: Tensor, group: ViewGroup, seed: int) -> float:
    """Return the share of views of (nearly) one colour, of uint8 images (n, C, H, W).

    Images that are of one colour themselves are left out: other views do not help. So is the colour
    jitter, which makes some views dark: the share is that of crops without contents.
    """
    augment = group.augment.model_copy(update={"jitter_p": 0.0})
    images = images[~_are_plain(images.float() / 255)]
    if not len(images):
        return 0.0
    views = make_views(
        ViewGroup(VIEWS, group.size, augment),
        images,
        draw(VIEWS * len(images), generator(seed, "plain views"), "cpu"),
    )
    return float(_are_plain(views.flatten(0, 1)).float().mean())


def _are_plain(images: Tensor) -> Tensor:
    """Return for each image (n, C, H, W) whether all its pixels have nearly the same colour."""
    return (images.flatten(2).std(2) < MIN_SPREAD).all(1)


def plain_views_line(images: Tensor, group: ViewGroup, seed: int, name: str = "") -> str | None:
    """Return a line about views of one colour if they are many; `name` is that of a preset."""
    share = plain_share(images, group, seed)
    if share < MIN_SHARE:
        return None
    smallest = group.augment.crop[0]
    views = f"{name} views".lstrip()
    return (
        f"about {100 * share:.0f}% of the {views} show (nearly) one colour, from which nothing is "
        f"learned: raise the smaller number of method.augment.crop, now {smallest:g}"
    )
