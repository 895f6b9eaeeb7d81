"""Views are a deterministic function of static shape, row by row."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from slow_views import (
    FULL,
    PLAIN,
    random_images,
    row,
    seeded,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedssl.views import (
    COLUMNS,
    Augment,
    ViewGroup,
    apply,
    draw,
    make_views,
    parameters,
)


def test_equal_uniforms_give_equal_bits_and_rows_are_independent() -> None:
    images = random_images(12, 3, 20, 20)
    uniforms = draw(12, seeded(2), "cpu")
    group = ViewGroup(1, 16, FULL)
    order = torch.randperm(12, generator=seeded(0))
    views = make_views(group, images, uniforms)
    assert torch.equal(views, make_views(group, images, uniforms))
    assert torch.equal(views[:, order], make_views(group, images[order], uniforms[order]))
    others = images.clone()
    others[1:] = 255 - others[1:]
    assert torch.equal(views[:, 0], make_views(group, others, uniforms)[:, 0])


def test_views_are_stored_view_by_view() -> None:
    images = random_images(5, 3, 20, 20)
    group = ViewGroup(3, 16, FULL)
    uniforms = draw(15, seeded(2), "cpu")
    views = make_views(group, images, uniforms)
    p = parameters(FULL, uniforms, 20, 20)
    assert views.shape == (3, 5, 3, 16, 16)
    for v, b in itertools.product(range(3), range(5)):
        alone = apply(images[b : b + 1], row(p, 5 * v + b), FULL, 16)[0]
        torch.testing.assert_close(views[v, b], alone, rtol=0, atol=1e-6)


def test_autocast_does_not_reach_the_products() -> None:
    images = random_images(4, 3, 16, 16)
    group = ViewGroup(2, 16, FULL)
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
    images = random_images(2, channels, 16, 16)
    group = ViewGroup(2, 16, augment)
    uniforms = draw(4, seeded(2), "cpu")
    mean = torch.full((channels,), 0.5)
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


def test_operations_that_are_switched_off_are_not_computed() -> None:
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
def test_views_stay_in_range(
    channels: int, height: int, width: int, size: int, strength: float, seed: int
) -> None:
    augment = Augment(
        jitter=(strength, strength, strength, min(strength, 0.5)), blur=0.5, blur_kernel=3
    )
    images = random_images(3, channels, height, width, seed)
    uniforms = draw(6, seeded(seed), "cpu")
    views = make_views(ViewGroup(2, size, augment), images, uniforms)
    assert views.isfinite().all()
    assert views.min() >= -1e-6
    assert views.max() <= 1 + 1e-6
