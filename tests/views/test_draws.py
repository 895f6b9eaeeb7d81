"""Parameters against slow formulas, and their distributions."""

from __future__ import annotations

import math

import pytest
import torch
from slow_views import (
    drawn,
    seeded,
)
from torch import Tensor

from fedssl.views import (
    COLUMNS,
    Augment,
    draw,
    parameters,
)


def slow_crop_parameters(
    augment: Augment, u: list[float], height: int, width: int
) -> tuple[int, int, int, int]:
    """Return RandomResizedCrop.get_params for uniforms: areas 0..9, ratios 10..19, position
    20, 21.
    """
    low, high = (math.log(r) for r in augment.ratio)
    for k in range(10):
        area = height * width * (augment.crop[0] + u[k] * (augment.crop[1] - augment.crop[0]))
        ratio = math.exp(low + u[10 + k] * (high - low))
        w = round(math.sqrt(area * ratio))
        h = round(math.sqrt(area / ratio))
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
    expected = torch.tensor(
        [slow_crop_parameters(augment, u, height, width) for u in uniforms.tolist()]
    )
    # Crops may differ only where float32 and float64 round to different pixels.
    assert (crops == expected).all(dim=1).float().mean() >= 0.995


def test_the_fallback_is_taken() -> None:
    p = drawn(Augment(crop=(0.9, 1.0)), 5, 4, 64)
    assert [int(f[0]) for f in p[:4]] == [0, (64 - 5) // 2, 4, 5]
    assert all((f == f[0]).all() for f in p[:4])


def ks_uniform(sample: Tensor) -> float:
    """Return √n times the Kolmogorov–Smirnov distance from U(0, 1): above 1.95 once in a
    thousand.
    """
    n = len(sample)
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    ordered = sample.double().sort().values
    return math.sqrt(n) * float(torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max())


def test_drawn_parameters_have_their_closed_form_distributions() -> None:
    augment = Augment(
        crop=(0.2, 0.5), jitter=(0.4, 0.8, 1.5, 0.1), flip=0.3, jitter_p=0.8, gray=0.2, blur=0.5
    )
    # The image is so large that every try fits, and rounding to whole pixels is negligible.
    n = 20_000
    side = 4000
    p = drawn(augment, n, side, side)
    area = p.height * p.width / side**2
    ratio = p.width / p.height
    assert ks_uniform((area - 0.2) / 0.3) < 1.95
    assert ks_uniform(ratio.log() / (2 * math.log(4 / 3)) + 0.5) < 1.95
    assert ks_uniform(p.top / (side - p.height)) < 1.95
    assert ks_uniform(p.left / (side - p.width)) < 1.95
    for kind, (low, high) in enumerate([(0.6, 1.4), (0.2, 1.8), (0.0, 2.5), (-0.1, 0.1)]):
        assert ks_uniform((p.factors[:, kind] - low) / (high - low)) < 1.95
    assert ks_uniform((p.sigma - 0.1) / 1.9) < 1.95
    for drawn_, probability in ((p.flip, 0.3), (p.jitter, 0.8), (p.gray, 0.2), (p.blur, 0.5)):
        assert abs(drawn_.float().mean() - probability) < 3.3 * math.sqrt(
            probability * (1 - probability) / n
        )


def test_orders_are_uniform_permutations() -> None:
    turn = drawn(Augment(), 24_000, 8, 8).turn
    n = 24_000
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


def test_draw_depends_on_the_generator_only() -> None:
    state = torch.random.get_rng_state()
    assert torch.equal(draw(9, seeded(5), "cpu"), draw(9, seeded(5), "cpu"))
    assert torch.equal(torch.random.get_rng_state(), state)
    buffer = torch.empty(9, COLUMNS)
    assert torch.equal(draw(9, seeded(5), "cpu"), buffer.uniform_(generator=seeded(5)))
