"""Views against slow, obvious formulas, one image at a time, and against torchvision itself."""

from __future__ import annotations

import colorsys
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedssl.errors import ConfigError
from fedssl.report.sheet import draw_sheet
from fedssl.settings import validate
from fedssl.views import COLUMNS, Augment, Parameters, ViewGroup, apply, draw, make_views, parameters

PLAIN = Augment(flip=0, jitter=(0, 0, 0, 0), jitter_p=0, gray=0)
FULL = Augment(jitter=(0.8, 0.8, 0.8, 0.5), blur=0.5, gray=0.3)
TOLERANCE = {"rtol": 0.0, "atol": 1e-5}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(n: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (n, channels, height, width), generator=seeded(seed), dtype=torch.uint8)


def drawn(augment: Augment, n: int, height: int, width: int, seed: int = 1) -> Parameters:
    return parameters(augment, draw(n, seeded(seed), "cpu"), height, width)


def whole(n: int, side: int, **fields: Any) -> Parameters:
    """Parameters of views that are the square images themselves, but for the fields given."""
    no, zero = torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.int64)
    full, turn, factors = zero + side, torch.arange(4).repeat(n, 1), torch.tensor([[1.0, 1.0, 1.0, 0.0]] * n)
    p = Parameters(zero, zero, full, full, no, no, turn, factors, no, no, torch.ones(n))
    return p._replace(**fields)


def row(p: Parameters, i: int) -> Parameters:
    return Parameters(*(field[i : i + 1] for field in p))


# Slow formulas. Images are float (C, H, W) in 0..1.


def slow_crop(x: Tensor, p: Parameters, i: int, size: int) -> Tensor:
    top, left, height, width = (int(field[i]) for field in p[:4])
    crop = x[None, :, top : top + height, left : left + width]
    out = F.interpolate(crop, (size, size), mode="bilinear", antialias=True, align_corners=False)[0]
    return out.flip(-1) if p.flip[i] else out


def slow_gray(x: Tensor) -> Tensor:
    return 0.2989 * x[0] + 0.587 * x[1] + 0.114 * x[2]


def slow_hue(x: Tensor, turns: float) -> Tensor:
    out = torch.empty_like(x)
    for i, j in itertools.product(range(x.shape[1]), range(x.shape[2])):
        h, s, v = colorsys.rgb_to_hsv(*x[:, i, j].tolist())
        out[:, i, j] = torch.tensor(colorsys.hsv_to_rgb((h + turns) % 1.0, s, v))
    return out


def slow_operation(x: Tensor, kind: int, factor: float) -> Tensor:
    rgb = len(x) == 3
    if kind == 0:
        base = torch.zeros_like(x)
    elif kind == 1:
        base = (slow_gray(x) if rgb else x).mean().expand_as(x)
    elif not rgb:
        return x
    elif kind == 2:
        base = slow_gray(x).expand_as(x)
    else:
        return slow_hue(x, factor)
    return (factor * x + (1 - factor) * base).clamp(0, 1)


def slow_blur(x: Tensor, kernel: int, sigma: float) -> Tensor:
    half, size = kernel // 2, x.shape[-1]
    taps = [math.exp(-0.5 * (d / sigma) ** 2) for d in range(-half, half + 1)]

    def along_last(y: Tensor) -> Tensor:
        out = torch.zeros_like(y)
        for i, d in itertools.product(range(size), range(-half, half + 1)):
            j = abs(i + d)
            j = 2 * (size - 1) - j if j > size - 1 else j
            out[..., i] += y[..., j] * taps[d + half] / sum(taps)
        return out

    return along_last(along_last(x).mT).mT


def slow_view(image: Tensor, p: Parameters, i: int, augment: Augment, size: int) -> Tensor:
    x = slow_crop(image / 255, p, i, size)
    if p.jitter[i]:
        for kind in p.turn[i].argsort().tolist():
            x = slow_operation(x, kind, float(p.factors[i, kind]))
    if p.gray[i] and len(x) == 3:
        x = slow_gray(x).expand_as(x)
    return slow_blur(x, augment.kernel(size), float(p.sigma[i])) if p.blur[i] else x


def jittered(x: Tensor, kind: int, factor: float) -> Tensor:
    """The views of uint8 images under one operation of the jitter alone."""
    n, side = x.shape[0], x.shape[2]
    p = whole(n, side, jitter=torch.ones(n, dtype=torch.bool))
    p.factors[:, kind] = factor
    strength = [0.0] * 4
    strength[kind] = 0.5
    return apply(x, p, PLAIN.model_copy(update={"jitter": tuple(strength), "jitter_p": 1.0}), side)


# Each operation.

CROPS = [(32, 32, 32), (28, 28, 28), (64, 64, 32), (96, 96, 32), (40, 56, 24), (20, 12, 32), (9, 9, 1)]


@pytest.mark.parametrize(("height", "width", "size"), CROPS)
def test_crop_is_interpolate_of_the_cropped_image(height: int, width: int, size: int) -> None:
    images, p = random_images(24, 2, height, width), drawn(Augment(crop=(0.01, 1.0)), 24, height, width)
    views = apply(images, p, Augment(jitter=(0, 0, 0, 0), gray=0), size)
    for i in range(24):
        torch.testing.assert_close(views[i], slow_crop(images[i] / 255, p, i, size), **TOLERANCE)


def test_crops_of_one_pixel_and_at_every_border() -> None:
    images, corners = random_images(5, 1, 7, 7), [(0, 0), (0, 6), (6, 0), (6, 6), (3, 3)]
    top, left = torch.tensor(corners).T
    one = torch.ones(5, dtype=torch.int64)
    views = apply(images, whole(5, 7, top=top, left=left, height=one, width=one), PLAIN, 4)
    for i, (t, k) in enumerate(corners):
        torch.testing.assert_close(views[i], (images[i, :, t, k] / 255).expand(1, 4, 4), **TOLERANCE)


def test_whole_image_at_its_own_size_is_unchanged_and_flip_mirrors_it() -> None:
    images, flip = random_images(4, 3, 16, 16), torch.tensor([False, True, False, True])
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
    torch.testing.assert_close(jittered(cube, 3, turns)[0], slow_hue(cube[0] / 255, turns), **TOLERANCE)


def test_jitter_in_all_24_orders() -> None:
    orders = torch.tensor(list(itertools.permutations(range(4))))
    images, factors = random_images(24, 3, 6, 6), drawn(FULL, 24, 6, 6).factors
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
    images, on = random_images(1, 3, 6, 6).repeat(2, 1, 1, 1), torch.ones(2, dtype=torch.bool)
    turn, factors = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]]), torch.tensor([[1.7, 0.4, 1.6, 0.3]] * 2)
    views = apply(images, whole(2, 6, jitter=on, turn=turn, factors=factors), FULL, 6)
    assert (views[0] - views[1]).abs().max() > 0.1


@pytest.mark.parametrize("kinds", [k for r in range(1, 5) for k in itertools.combinations(range(4), r)])
@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_with_some_strengths_zero(kinds: tuple[int, ...], channels: int) -> None:
    augment = Augment(jitter=tuple(0.5 * (k in kinds) for k in range(4)), jitter_p=0.7, gray=0)
    images, p = random_images(6, channels, 5, 5), drawn(augment, 6, 5, 5)
    views = apply(images, p, augment, 5)
    for i in range(6):
        torch.testing.assert_close(views[i], slow_view(images[i], p, i, augment, 5), **TOLERANCE)


def test_grayscale_where_drawn_and_only_there() -> None:
    images, gray = random_images(2, 3, 8, 8), torch.tensor([True, False])
    views = apply(images, whole(2, 8, gray=gray), PLAIN.model_copy(update={"gray": 0.5}), 8)
    torch.testing.assert_close(views[0], slow_gray(images[0] / 255).expand(3, 8, 8), **TOLERANCE)
    torch.testing.assert_close(views[1], images[1] / 255, **TOLERANCE)


@pytest.mark.parametrize("kernel", [1, 3, 5, 9, 15])
def test_blur_reflects_at_borders_and_is_the_identity_where_off(kernel: int) -> None:
    images, sigma = random_images(3, 2, 8, 8), torch.tensor([0.1, 2.0, 1.0])
    p = whole(3, 8, blur=torch.tensor([True, True, False]), sigma=sigma)
    views = apply(images, p, PLAIN.model_copy(update={"blur": 0.5, "blur_kernel": kernel}), 8)
    for i in range(2):
        torch.testing.assert_close(views[i], slow_blur(images[i] / 255, kernel, float(sigma[i])), **TOLERANCE)
    assert torch.equal(views[2], apply(images, p, PLAIN, 8)[2])


@pytest.mark.parametrize("augment", [PLAIN, FULL])
def test_normalisation_comes_last(augment: Augment) -> None:
    images, p = random_images(8, 3, 16, 16), drawn(augment, 8, 16, 16)
    mean, std = torch.tensor([0.1, 0.5, 0.9]), torch.tensor([0.2, 0.3, 1.1])
    expected = (apply(images, p, augment, 16) - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(apply(images, p, augment, 16, mean, std), expected, **TOLERANCE)


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize(("height", "width", "size"), [(12, 12, 12), (24, 20, 10)])
def test_whole_pipeline_equals_the_slow_one(channels: int, height: int, width: int, size: int) -> None:
    images, p = random_images(16, channels, height, width), drawn(FULL, 16, height, width)
    views = apply(images, p, FULL, size)
    assert views.dtype == torch.float32
    assert views.shape == (16, channels, size, size)
    for i in range(16):
        torch.testing.assert_close(views[i], slow_view(images[i], p, i, FULL, size), **TOLERANCE)


# Parameters.


def slow_crop_parameters(augment: Augment, u: list[float], height: int, width: int) -> tuple[int, int, int, int]:
    """RandomResizedCrop.get_params with the uniforms given: areas 0..9, ratios 10..19, position 20, 21."""
    low, high = (math.log(r) for r in augment.ratio)
    for k in range(10):
        area = height * width * (augment.crop[0] + u[k] * (augment.crop[1] - augment.crop[0]))
        ratio = math.exp(low + u[10 + k] * (high - low))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(u[20] * (height - h + 1)), int(u[21] * (width - w + 1)), h, w
    h = round(width / augment.ratio[0]) if width / height < augment.ratio[0] else height
    w = round(height * augment.ratio[1]) if width / height > augment.ratio[1] else width
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 60), (60, 20), (4, 64), (64, 4)])
def test_crops_are_those_of_ten_tries_and_a_central_fallback(height: int, width: int) -> None:
    augment = Augment(crop=(0.3, 1.0))
    uniforms = draw(400, seeded(3), "cpu")
    crops = torch.stack(parameters(augment, uniforms, height, width)[:4], dim=1)
    expected = torch.tensor([slow_crop_parameters(augment, u, height, width) for u in uniforms.tolist()])
    # Only float32 against float64 at a rounding's edge may differ.
    assert (crops == expected).all(dim=1).float().mean() >= 0.995


def test_the_fallback_is_taken() -> None:
    p = drawn(Augment(crop=(0.9, 1.0)), 5, 4, 64)
    assert [int(f[0]) for f in p[:4]] == [0, (64 - 5) // 2, 4, 5]
    assert all((f == f[0]).all() for f in p[:4])


def ks_uniform(sample: Tensor) -> float:
    """√n times the Kolmogorov–Smirnov distance of a sample from U(0, 1): above 1.95 once in a thousand."""
    n = len(sample)
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    ordered = sample.double().sort().values
    return math.sqrt(n) * float(torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max())


def test_drawn_parameters_have_their_closed_form_distributions() -> None:
    augment = Augment(crop=(0.2, 0.5), jitter=(0.4, 0.8, 1.5, 0.1), flip=0.3, jitter_p=0.8, gray=0.2, blur=0.5)
    n, side = 20_000, 4000  # so large that every try fits and whole pixels do not show
    p = drawn(augment, n, side, side)
    area, ratio = p.height * p.width / side**2, p.width / p.height
    assert ks_uniform((area - 0.2) / 0.3) < 1.95
    assert ks_uniform(ratio.log() / (2 * math.log(4 / 3)) + 0.5) < 1.95
    assert ks_uniform(p.top / (side - p.height)) < 1.95
    assert ks_uniform(p.left / (side - p.width)) < 1.95
    for kind, (low, high) in enumerate([(0.6, 1.4), (0.2, 1.8), (0.0, 2.5), (-0.1, 0.1)]):
        assert ks_uniform((p.factors[:, kind] - low) / (high - low)) < 1.95
    assert ks_uniform((p.sigma - 0.1) / 1.9) < 1.95
    for drawn_, probability in ((p.flip, 0.3), (p.jitter, 0.8), (p.gray, 0.2), (p.blur, 0.5)):
        assert abs(drawn_.float().mean() - probability) < 3.3 * math.sqrt(probability * (1 - probability) / n)


def test_orders_are_uniform_permutations() -> None:
    turn, n = drawn(Augment(), 24_000, 8, 8).turn, 24_000
    assert torch.equal(turn.sort(dim=1).values, torch.arange(4).expand(n, 4))
    counts = torch.unique(turn, dim=0, return_counts=True)[1]
    assert len(counts) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 49.7  # χ² with 23 degrees of freedom, 0.001


def test_equal_uniforms_still_give_a_permutation_and_extremes_stay_inside() -> None:
    for value in (0.0, 0.5, 1 - 2**-24):
        p = parameters(Augment(), torch.full((3, COLUMNS), value), 33, 47)
        assert p.turn.sort(dim=1).values.tolist() == [[0, 1, 2, 3]] * 3
        assert (p.top >= 0).all()
        assert (p.top + p.height <= 33).all()
        assert (p.left + p.width <= 47).all()


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_probabilities_of_zero_and_one_are_certain(probability: float) -> None:
    augment = Augment(flip=probability, jitter_p=probability, gray=probability, blur=probability)
    uniforms = torch.tensor([[0.0], [1 - 2**-24]]).expand(2, COLUMNS)
    p = parameters(augment, uniforms, 8, 8)
    assert all((flag == bool(probability)).all() for flag in (p.flip, p.jitter, p.gray, p.blur))


def test_draw_is_the_generators_alone() -> None:
    state = torch.random.get_rng_state()
    assert torch.equal(draw(9, seeded(5), "cpu"), draw(9, seeded(5), "cpu"))
    assert torch.equal(torch.random.get_rng_state(), state)
    buffer = torch.empty(9, COLUMNS)
    assert torch.equal(draw(9, seeded(5), "cpu"), buffer.uniform_(generator=seeded(5)))


# A deterministic function, row by row, of static shape.


def test_same_uniforms_same_bits_and_rows_do_not_see_each_other() -> None:
    images, uniforms = random_images(12, 3, 20, 20), draw(12, seeded(2), "cpu")
    group, order = ViewGroup(1, 16, FULL), torch.randperm(12, generator=seeded(0))
    views = make_views(group, images, uniforms)
    assert torch.equal(views, make_views(group, images, uniforms))
    assert torch.equal(views[:, order], make_views(group, images[order], uniforms[order]))
    others = images.clone()
    others[1:] = 255 - others[1:]
    assert torch.equal(views[:, 0], make_views(group, others, uniforms)[:, 0])


def test_views_lie_view_by_view() -> None:
    images, group = random_images(5, 3, 20, 20), ViewGroup(3, 16, FULL)
    uniforms = draw(15, seeded(2), "cpu")
    views, p = make_views(group, images, uniforms), parameters(FULL, uniforms, 20, 20)
    assert views.shape == (3, 5, 3, 16, 16)
    for v, b in itertools.product(range(3), range(5)):
        alone = apply(images[b : b + 1], row(p, 5 * v + b), FULL, 16)[0]
        torch.testing.assert_close(views[v, b], alone, rtol=0, atol=1e-6)


def test_autocast_does_not_reach_the_products() -> None:
    images, group = random_images(4, 3, 16, 16), ViewGroup(2, 16, FULL)
    uniforms = draw(8, seeded(2), "cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        views = make_views(group, images, uniforms)
    assert torch.equal(views, make_views(group, images, uniforms))


class Record(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def operators(augment: Augment, channels: int = 3) -> set[str]:
    images, group = random_images(2, channels, 16, 16), ViewGroup(2, 16, augment)
    uniforms, mean = draw(4, seeded(2), "cpu"), torch.full((channels,), 0.5)
    with Record() as record:
        make_views(group, images, uniforms, mean, mean)
    return record.names


def test_no_operator_waits_draws_or_reads_python_numbers_onto_the_device() -> None:
    waiting = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "item", "lift_fresh"}
    drawing = {"rand", "uniform_", "randint", "randperm", "bernoulli", "normal_"}
    assert not operators(FULL) & (waiting | drawing)


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_shapes_are_known_without_values(channels: int) -> None:
    with FakeTensorMode():
        images = torch.empty(6, channels, 20, 24, dtype=torch.uint8)
        views = make_views(ViewGroup(2, 16, FULL), images, torch.empty(12, COLUMNS))
    assert views.shape == (2, 6, channels, 16, 16)


def test_what_settings_rule_out_is_not_computed() -> None:
    assert {"copysign", "lerp_", "addcmul_"} <= operators(FULL)
    assert "copysign" not in operators(FULL.model_copy(update={"jitter": (0.4, 0.4, 0.4, 0.0)}))
    assert "copysign" not in operators(FULL, channels=1)
    assert "lerp_" not in operators(PLAIN)
    assert "addcmul_" not in operators(FULL.model_copy(update={"blur": 0.0}))


@given(
    st.integers(1, 4),
    st.integers(2, 9),
    st.integers(2, 9),
    st.integers(2, 9),
    st.floats(0, 2),
    st.integers(0, 99),
)
def test_views_stay_in_range(channels: int, height: int, width: int, size: int, strength: float, seed: int) -> None:
    augment = Augment(jitter=(strength, strength, strength, min(strength, 0.5)), blur=0.5, blur_kernel=3)
    images, uniforms = random_images(3, channels, height, width, seed), draw(6, seeded(seed), "cpu")
    views = make_views(ViewGroup(2, size, augment), images, uniforms)
    assert views.isfinite().all()
    assert views.min() >= -1e-6
    assert views.max() <= 1 + 1e-6


# What is refused.


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("crop", (0.0, 1.0)), ("crop", (0.5, 0.2)), ("crop", (0.5, 1.5)), ("ratio", (-1, 1)), ("flip", 1.1),
        ("jitter", (0.4, 0.4, 0.4, 0.6)), ("jitter", (-0.1, 0, 0, 0)), ("gray", -0.1), ("blur_kernel", 4),
        ("blur_kernel", 0), ("blur_sigma", (0.0, 1.0)), ("hue", 0.1),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"views.{key}"):
        validate(Augment, {key: value}, "views")


def test_kernel_is_about_a_tenth_of_the_side() -> None:
    assert [Augment().kernel(size) for size in (8, 28, 32, 64, 96, 224)] == [3, 3, 3, 7, 9, 23]
    assert Augment(blur_kernel=5).kernel(224) == 5


def test_impossible_groups_and_inputs_are_refused() -> None:
    with pytest.raises(ConfigError, match="views and pixels"):
        ViewGroup(0, 32, Augment())
    with pytest.raises(ConfigError, match="9 taps"):
        ViewGroup(2, 4, Augment(blur=0.5, blur_kernel=9))
    images, p = random_images(4, 3, 8, 8), drawn(PLAIN, 4, 8, 8)
    with pytest.raises(ValueError, match="uint8"):
        apply(images / 255, p, PLAIN, 8)
    with pytest.raises(ValueError, match="4 rows"):
        apply(images[:3], p, PLAIN, 8)
    with pytest.raises(ValueError, match=r"2 views of 4 images take \(8, 35\)"):
        make_views(ViewGroup(2, 8, PLAIN), images, torch.rand(4, 35))
    assert len({ViewGroup(2, 8, PLAIN), ViewGroup(2, 8, Augment(**PLAIN.model_dump()))}) == 1


# What a person sees.


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (5, 128)])
def test_contact_sheet_shows_clean_images_first(channels: int, size: int, tmp_path: Path) -> None:
    images = random_images(3, channels, 24, 24)
    draw_sheet(images, ViewGroup(2, size, FULL), 0, tmp_path / "a.png")
    draw_sheet(images, ViewGroup(2, size, FULL), 0, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as sheet:
        pixels = torch.from_numpy(np.array(sheet.crop((4, 18, 100, 114)))).view(24, 4, 24, 4, 3)
    shown = images[0, :3] if channels > 1 else images[0].expand(3, 24, 24)
    assert torch.equal(pixels, shown.permute(1, 2, 0)[:, None, :, None].expand(24, 4, 24, 4, 3))


# Torchvision itself.


@pytest.fixture
def tv() -> Any:
    pytest.importorskip("torchvision")
    import torchvision.transforms as transforms

    return transforms


def torchvision_view(tv: Any, image: Tensor, p: Parameters, i: int, augment: Augment, size: int) -> Tensor:
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
    images, p = random_images(24, 5, height, width), drawn(PLAIN, 24, height, width)
    views = apply(images, p, PLAIN, size)
    for i in range(24):
        torch.testing.assert_close(views[i], torchvision_view(tv, images[i], p, i, PLAIN, size), **TOLERANCE)


@pytest.mark.oracle
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("kind", "factor"),
    [(k, f) for k in range(3) for f in (0.0, 0.2, 1.0, 1.8)] + [(3, h) for h in (-0.5, -0.2, 0.0, 0.1, 0.5)],
)
def test_torchvision_colour_operations(tv: Any, channels: int, kind: int, factor: float) -> None:
    names = ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue")
    images = random_images(3, channels, 24, 24)
    expected = torch.stack([getattr(tv.functional, names[kind])(image / 255, factor) for image in images])
    torch.testing.assert_close(jittered(images, kind, factor), expected, **TOLERANCE)


@pytest.mark.oracle
@pytest.mark.parametrize("kernel", [1, 3, 7, 23])
def test_torchvision_blur(tv: Any, kernel: int) -> None:
    images, sigma = random_images(4, 5, 24, 24), torch.tensor([0.1, 0.5, 1.3, 2.0])
    p = whole(4, 24, blur=torch.ones(4, dtype=torch.bool), sigma=sigma)
    views = apply(images, p, PLAIN.model_copy(update={"blur": 1.0, "blur_kernel": kernel}), 24)
    for i in range(4):
        expected = tv.functional.gaussian_blur(images[i] / 255, [kernel] * 2, [float(sigma[i])] * 2)
        torch.testing.assert_close(views[i], expected, **TOLERANCE)


@pytest.mark.oracle
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 32), (28, 28, 28), (96, 64, 32), (48, 48, 64)])
def test_torchvision_whole_pipeline(tv: Any, channels: int, height: int, width: int, size: int) -> None:
    images, p = random_images(64, channels, height, width), drawn(FULL, 64, height, width)
    mean, std = torch.full((channels,), 0.45), torch.full((channels,), 0.27)
    views = apply(images, p, FULL, size, mean, std)
    for i in range(64):
        x = tv.functional.normalize(torchvision_view(tv, images[i], p, i, FULL, size), mean.tolist(), std.tolist())
        torch.testing.assert_close(views[i], x, rtol=0, atol=1e-5 / 0.27)


def ks_two(a: Tensor, b: Tensor) -> float:
    """The two-sample statistic, scaled as `ks_uniform`; ties (whole pixels) only make it smaller."""
    grid = torch.cat([a, b]).double().sort().values
    gap = [torch.searchsorted(s.double().sort().values, grid, right=True) / len(s) for s in (a, b)]
    return math.sqrt(len(a) * len(b) / (len(a) + len(b))) * float((gap[0] - gap[1]).abs().max())


@pytest.mark.oracle
@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 30), (5, 40)])
def test_torchvision_crop_sampler(tv: Any, height: int, width: int) -> None:
    n, image = 5000, torch.empty(1, height, width)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = torch.tensor([tv.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(n)])
    ours = torch.stack(drawn(Augment(), n, height, width)[:4], dim=1)
    for k in range(4):
        assert ks_two(ours[:, k], theirs[:, k]) < 1.95
    assert ks_two(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]) < 1.95
    assert ks_two(ours[:, 3] / ours[:, 2], theirs[:, 3] / theirs[:, 2]) < 1.95


@pytest.mark.oracle
def test_torchvision_jitter_sampler(tv: Any) -> None:
    n, augment = 5000, Augment(jitter=(0.4, 0.8, 1.5, 0.1))
    theirs = tv.ColorJitter(*augment.jitter)
    ranges = [list(r) for r in (theirs.brightness, theirs.contrast, theirs.saturation, theirs.hue)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sampled = [theirs.get_params(*ranges) for _ in range(n)]
    p = drawn(augment, n, 8, 8)
    for kind in range(4):
        assert ks_two(p.factors[:, kind], torch.tensor([s[1 + kind] for s in sampled])) < 1.95
    orders = torch.stack([s[0] for s in sampled]), p.turn.argsort(dim=1)
    counts = [torch.bincount((o * torch.tensor([64, 16, 4, 1])).sum(dim=1), minlength=256) for o in orders]
    used = counts[0] + counts[1] > 0
    assert int(used.sum()) == 24
    assert ((counts[0] - counts[1]) ** 2 / (counts[0] + counts[1]))[used].sum() < 49.7  # χ², 23, 0.001
