"""Views against torchvision."""

from __future__ import annotations

import math
from typing import Any

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
    whole,
)
from torch import Tensor

from fedssl.views import (
    Augment,
    Parameters,
    apply,
)


@pytest.fixture
def tv() -> Any:
    pytest.importorskip("torchvision")
    import torchvision.transforms as transforms

    return transforms


def torchvision_view(
    tv: Any, image: Tensor, p: Parameters, i: int, augment: Augment, size: int
) -> Tensor:
    f = tv.functional
    top, left, height, width = (int(field[i]) for field in p[:4])
    x = f.resized_crop(image / 255, top, left, height, width, [size, size], antialias=True)
    x = f.hflip(x) if p.flip[i] else x
    adjust = (f.adjust_brightness, f.adjust_contrast, f.adjust_saturation, f.adjust_hue)
    for kind in p.turn[i].argsort().tolist() if p.jitter[i] else []:
        x = adjust[kind](x, float(p.factors[i, kind]))
    x = f.rgb_to_grayscale(x, num_output_channels=len(x)) if p.gray[i] else x
    k = augment.kernel(size)
    return f.gaussian_blur(x, [k, k], [float(p.sigma[i])] * 2) if p.blur[i] else x


@pytest.mark.oracle
@pytest.mark.parametrize(("height", "width", "size"), CROPS)
def test_torchvision_resized_crop(tv: Any, height: int, width: int, size: int) -> None:
    images = random_images(24, 5, height, width)
    p = drawn(PLAIN, 24, height, width)
    views = apply(images, p, PLAIN, size)
    for i in range(24):
        torch.testing.assert_close(
            views[i], torchvision_view(tv, images[i], p, i, PLAIN, size), **TOLERANCE
        )


@pytest.mark.oracle
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("kind", "factor"),
    [(k, f) for k in range(3) for f in (0.0, 0.2, 1.0, 1.8)]
    + [(3, h) for h in (-0.5, -0.2, 0.0, 0.1, 0.5)],
)
def test_torchvision_colour_operations(tv: Any, channels: int, kind: int, factor: float) -> None:
    names = ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue")
    images = random_images(3, channels, 24, 24)
    expected = torch.stack(
        [getattr(tv.functional, names[kind])(image / 255, factor) for image in images]
    )
    torch.testing.assert_close(jittered(images, kind, factor), expected, **TOLERANCE)


@pytest.mark.oracle
@pytest.mark.parametrize("kernel", [1, 3, 7, 23])
def test_torchvision_blur(tv: Any, kernel: int) -> None:
    images = random_images(4, 5, 24, 24)
    sigma = torch.tensor([0.1, 0.5, 1.3, 2.0])
    p = whole(4, 24, blur=torch.ones(4, dtype=torch.bool), sigma=sigma)
    views = apply(images, p, PLAIN.model_copy(update={"blur": 1.0, "blur_kernel": kernel}), 24)
    for i in range(4):
        expected = tv.functional.gaussian_blur(images[i] / 255, [kernel] * 2, [float(sigma[i])] * 2)
        torch.testing.assert_close(views[i], expected, **TOLERANCE)


@pytest.mark.oracle
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("height", "width", "size"), [(32, 32, 32), (28, 28, 28), (96, 64, 32), (48, 48, 64)]
)
def test_torchvision_whole_pipeline(
    tv: Any, channels: int, height: int, width: int, size: int
) -> None:
    images = random_images(64, channels, height, width)
    p = drawn(FULL, 64, height, width)
    mean = torch.full((channels,), 0.45)
    std = torch.full((channels,), 0.27)
    views = apply(images, p, FULL, size, mean, std)
    for i in range(64):
        x = tv.functional.normalize(
            torchvision_view(tv, images[i], p, i, FULL, size), mean.tolist(), std.tolist()
        )
        torch.testing.assert_close(views[i], x, rtol=0, atol=1e-5 / 0.27)


def ks_two(a: Tensor, b: Tensor) -> float:
    """Return the two-sample statistic, scaled like `ks_uniform`; ties (whole pixels) only reduce
    it.
    """
    grid = torch.cat([a, b]).double().sort().values
    gap = [torch.searchsorted(s.double().sort().values, grid, right=True) / len(s) for s in (a, b)]
    return math.sqrt(len(a) * len(b) / (len(a) + len(b))) * float((gap[0] - gap[1]).abs().max())


@pytest.mark.oracle
@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 30), (5, 40)])
def test_torchvision_crop_sampler(tv: Any, height: int, width: int) -> None:
    n = 5000
    image = torch.empty(1, height, width)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = torch.tensor(
            [tv.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(n)]
        )
    ours = torch.stack(drawn(Augment(), n, height, width)[:4], dim=1)
    for k in range(4):
        assert ks_two(ours[:, k], theirs[:, k]) < 1.95
    assert ks_two(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]) < 1.95
    assert ks_two(ours[:, 3] / ours[:, 2], theirs[:, 3] / theirs[:, 2]) < 1.95


@pytest.mark.oracle
def test_torchvision_jitter_sampler(tv: Any) -> None:
    n = 5000
    augment = Augment(jitter=(0.4, 0.8, 1.5, 0.1))
    theirs = tv.ColorJitter(*augment.jitter)
    ranges = [list(r) for r in (theirs.brightness, theirs.contrast, theirs.saturation, theirs.hue)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sampled = [theirs.get_params(*ranges) for _ in range(n)]
    p = drawn(augment, n, 8, 8)
    for kind in range(4):
        assert ks_two(p.factors[:, kind], torch.tensor([s[1 + kind] for s in sampled])) < 1.95
    orders = torch.stack([s[0] for s in sampled]), p.turn.argsort(dim=1)
    counts = [
        torch.bincount((o * torch.tensor([64, 16, 4, 1])).sum(dim=1), minlength=256) for o in orders
    ]
    used = counts[0] + counts[1] > 0
    assert int(used.sum()) == 24
    assert ((counts[0] - counts[1]) ** 2 / (counts[0] + counts[1]))[
        used
    ].sum() < 49.7  # χ², 23, 0.001
