"""Each operation, and all of them together, against slow formulas."""

from __future__ import annotations

import itertools

import pytest
import torch
from slow_views import (
    CROPS,
    FULL,
    PLAIN,
    TOLERANCE,
    drawn,
    jittered,
    random_images,
    slow_blur,
    slow_crop,
    slow_gray,
    slow_hue,
    slow_operation,
    slow_view,
    whole,
)

from fedssl.views import (
    Augment,
    apply,
)


@pytest.mark.parametrize(("height", "width", "size"), CROPS)
def test_crop_is_interpolate_of_the_cropped_image(height: int, width: int, size: int) -> None:
    images = random_images(24, 2, height, width)
    p = drawn(Augment(crop=(0.01, 1.0)), 24, height, width)
    views = apply(images, p, Augment(jitter=(0, 0, 0, 0), gray=0), size)
    for i in range(24):
        torch.testing.assert_close(views[i], slow_crop(images[i] / 255, p, i, size), **TOLERANCE)


def test_crops_of_one_pixel_and_at_every_border() -> None:
    images = random_images(5, 1, 7, 7)
    corners = [(0, 0), (0, 6), (6, 0), (6, 6), (3, 3)]
    top, left = torch.tensor(corners).T
    one = torch.ones(5, dtype=torch.int64)
    views = apply(images, whole(5, 7, top=top, left=left, height=one, width=one), PLAIN, 4)
    for i, (t, k) in enumerate(corners):
        torch.testing.assert_close(
            views[i], (images[i, :, t, k] / 255).expand(1, 4, 4), **TOLERANCE
        )


def test_whole_image_at_its_own_size_is_unchanged_and_flip_mirrors_it() -> None:
    images = random_images(4, 3, 16, 16)
    flip = torch.tensor([False, True, False, True])
    views = apply(images, whole(4, 16, flip=flip), PLAIN.model_copy(update={"flip": 0.5}), 16)
    torch.testing.assert_close(views[0::2], images[0::2] / 255, rtol=0, atol=1e-7)
    torch.testing.assert_close(views[1::2], images[1::2].flip(-1) / 255, rtol=0, atol=1e-7)


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_each_jitter_operation_alone(channels: int, kind: int, share: float) -> None:
    factor = share - 0.5 if kind == 3 else 2 * share
    images = random_images(2, channels, 6, 6)
    for image, view in zip(images, jittered(images, kind, factor), strict=True):
        torch.testing.assert_close(view, slow_operation(image / 255, kind, factor), **TOLERANCE)


@pytest.mark.parametrize("turns", [-0.5, -1 / 3, -0.25, -1e-3, 0.0, 1 / 6, 0.2, 0.499, 0.5])
def test_hue_at_corners_edges_and_greys_of_the_colour_cube(turns: float) -> None:
    levels = torch.tensor([0, 1, 127, 254, 255], dtype=torch.uint8)
    cube = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 5, 25).repeat(1, 1, 5, 1)
    torch.testing.assert_close(
        jittered(cube, 3, turns)[0], slow_hue(cube[0] / 255, turns), **TOLERANCE
    )


def test_jitter_in_all_24_orders() -> None:
    orders = torch.tensor(list(itertools.permutations(range(4))))
    images = random_images(24, 3, 6, 6)
    factors = drawn(FULL, 24, 6, 6).factors
    on = torch.ones(24, dtype=torch.bool)
    p = whole(24, 6, jitter=on, turn=orders.argsort(dim=1), factors=factors)
    views = apply(images, p, FULL.model_copy(update={"gray": 0, "blur": 0}), 6)
    for i, order in enumerate(orders.tolist()):
        x = images[i] / 255
        for kind in order:
            x = slow_operation(x, kind, float(factors[i, kind]))
        torch.testing.assert_close(views[i], x, **TOLERANCE)


def test_orders_differ() -> None:
    """The test above could not fail if all orders gave one result."""
    images = random_images(1, 3, 6, 6).repeat(2, 1, 1, 1)
    on = torch.ones(2, dtype=torch.bool)
    turn = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])
    factors = torch.tensor([[1.7, 0.4, 1.6, 0.3]] * 2)
    views = apply(images, whole(2, 6, jitter=on, turn=turn, factors=factors), FULL, 6)
    assert (views[0] - views[1]).abs().max() > 0.1


@pytest.mark.parametrize(
    "kinds", [k for r in range(1, 5) for k in itertools.combinations(range(4), r)]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_with_some_strengths_zero(kinds: tuple[int, ...], channels: int) -> None:
    augment = Augment(jitter=tuple(0.5 * (k in kinds) for k in range(4)), jitter_p=0.7, gray=0)
    images = random_images(6, channels, 5, 5)
    p = drawn(augment, 6, 5, 5)
    views = apply(images, p, augment, 5)
    for i in range(6):
        torch.testing.assert_close(views[i], slow_view(images[i], p, i, augment, 5), **TOLERANCE)


def test_grayscale_where_drawn_and_only_there() -> None:
    images = random_images(2, 3, 8, 8)
    gray = torch.tensor([True, False])
    views = apply(images, whole(2, 8, gray=gray), PLAIN.model_copy(update={"gray": 0.5}), 8)
    torch.testing.assert_close(views[0], slow_gray(images[0] / 255).expand(3, 8, 8), **TOLERANCE)
    torch.testing.assert_close(views[1], images[1] / 255, **TOLERANCE)


@pytest.mark.parametrize("kernel", [1, 3, 5, 9, 15])
def test_blur_reflects_at_borders_and_is_the_identity_where_off(kernel: int) -> None:
    images = random_images(3, 2, 8, 8)
    sigma = torch.tensor([0.1, 2.0, 1.0])
    p = whole(3, 8, blur=torch.tensor([True, True, False]), sigma=sigma)
    views = apply(images, p, PLAIN.model_copy(update={"blur": 0.5, "blur_kernel": kernel}), 8)
    for i in range(2):
        torch.testing.assert_close(
            views[i], slow_blur(images[i] / 255, kernel, float(sigma[i])), **TOLERANCE
        )
    assert torch.equal(views[2], apply(images, p, PLAIN, 8)[2])


@pytest.mark.parametrize("augment", [PLAIN, FULL])
def test_normalisation_comes_last(augment: Augment) -> None:
    images = random_images(8, 3, 16, 16)
    p = drawn(augment, 8, 16, 16)
    mean = torch.tensor([0.1, 0.5, 0.9])
    std = torch.tensor([0.2, 0.3, 1.1])
    expected = (apply(images, p, augment, 16) - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(apply(images, p, augment, 16, mean, std), expected, **TOLERANCE)


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize(("height", "width", "size"), [(12, 12, 12), (24, 20, 10)])
def test_whole_pipeline_equals_the_slow_one(
    channels: int, height: int, width: int, size: int
) -> None:
    images = random_images(16, channels, height, width)
    p = drawn(FULL, 16, height, width)
    views = apply(images, p, FULL, size)
    assert views.dtype == torch.float32
    assert views.shape == (16, channels, size, size)
    for i in range(16):
        torch.testing.assert_close(views[i], slow_view(images[i], p, i, FULL, size), **TOLERANCE)
