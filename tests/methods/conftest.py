"""A tiny instance of any method, and a batch for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from factories import SMALL_WIDTHS, TinyCNN

from fedssl import views
from fedssl.method import Batch, Method, Output
from fedssl.training.optimizers import SGD
from fedssl.training.step import Inputs, Step

SIZE = 8

Make = Callable[..., Method]


@pytest.fixture
def make() -> Make:
    """make(BYOL, momentum=0.5): return a small resident method with fixed weights in training
    mode.
    """

    def build(cls: type[Method], **settings: Any) -> Method:
        small = {
            key: value for key, value in SMALL_WIDTHS.items() if key in cls.Settings.model_fields
        }
        with torch.random.fork_rng():
            torch.manual_seed(5)
            method = cls.Settings(**{**small, **settings}).build(TinyCNN(), SIZE)
        method.init_local_parts(torch.Generator().manual_seed(6))
        return method.train()

    return build


@pytest.fixture
def step() -> Callable[[Method], Output]:
    """step(method): train one step on six images at a rate of 0: only `after_step` changes
    values.
    """

    def call(method: Method) -> Output:
        stream = torch.Generator().manual_seed(7)
        images = torch.randint(256, (6, 3, SIZE, SIZE), dtype=torch.uint8, generator=stream)
        uniforms = tuple(views.draw(g.count * 6, stream, "cpu") for g in method.views)
        train_step = Step(method, SGD(method.parameter_row(method.online), decay=0.0, momentum=0.9))
        inputs = Inputs(torch.arange(6), images, uniforms, None, {})
        return train_step(
            inputs, lambda method, batch, out, constants: method.loss(out, constants), {}
        )

    return call


@pytest.fixture
def batch() -> Batch:
    """Return a batch of six labelled images with two views, the second with other statistics."""
    generator = torch.Generator().manual_seed(7)
    views = torch.randn(2, 6, 3, SIZE, SIZE, generator=generator)
    views[1] = 2 * views[1] + 1
    return Batch(
        index=torch.arange(6),
        images=torch.randint(256, (6, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator),
        views=(views,),
        labels=torch.tensor([0, 1, 2, 3, 4, 0]),
        draws={},
        progress=torch.zeros(()),
    )
