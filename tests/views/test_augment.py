"""Settings and inputs out of range are errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from error_messages import raises
from slow_views import (
    PLAIN,
    drawn,
    random_images,
)

from fedssl.core.errors import ConfigError
from fedssl.core.settings import validate
from fedssl.views import (
    Augment,
    ViewGroup,
    apply,
    make_views,
)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("crop", (0.0, 1.0)), ("crop", (0.5, 0.2)), ("crop", (0.5, 1.5)), ("ratio", (-1, 1)),
        ("flip", 1.1), ("jitter", (0.4, 0.4, 0.4, 0.6)), ("jitter", (-0.1, 0, 0, 0)),
        ("gray", -0.1), ("blur_kernel", 4),
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
    with raises(ConfigError):
        ViewGroup(0, 32, Augment())
    with raises(ConfigError):
        ViewGroup(2, 4, Augment(blur=0.5, blur_kernel=9))
    images = random_images(4, 3, 8, 8)
    p = drawn(PLAIN, 4, 8, 8)
    with pytest.raises(ValueError, match="uint8"):
        apply(images / 255, p, PLAIN, 8)
    with pytest.raises(ValueError, match="4 rows"):
        apply(images[:3], p, PLAIN, 8)
    with pytest.raises(ValueError, match=r"2 views of 4 images take \(8, 35\)"):
        make_views(ViewGroup(2, 8, PLAIN), images, torch.rand(4, 35))
    assert len({ViewGroup(2, 8, PLAIN), ViewGroup(2, 8, Augment(**PLAIN.model_dump()))}) == 1
