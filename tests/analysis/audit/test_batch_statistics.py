"""Running statistics reveal the moments of batches."""

from __future__ import annotations

import pytest
import torch
from factories import make_method, random_pixels
from torch import Tensor, nn

from fedssl.analysis.audit.batch_statistics import (
    Moments,
    StatisticsRecorder,
    distance,
    from_running,
)

pytestmark = pytest.mark.rows("C9")

LAYER = "backbone.layers.0.1"


def _running(method: nn.Module) -> Moments:
    layer = method.get_submodule(LAYER)
    assert isinstance(layer.running_mean, Tensor)
    assert isinstance(layer.running_var, Tensor)
    return Moments(layer.running_mean.clone(), layer.running_var.clone())


def test_recorded_moments_are_those_that_running_statistics_reveal() -> None:
    """Two groups in one pass, then another pass: three updates of the running statistics."""
    method = make_method("simclr").train()
    recorder = StatisticsRecorder(method, [LAYER])
    before = _running(method)
    method.encode(method.clean(random_pixels(8, 1)), groups=2)
    method.encode(method.clean(random_pixels(8, 2)))
    revealed = from_running(before, _running(method), batches=3, momentum=0.1)
    assert revealed is not None
    recorded = recorder.take()[LAYER]
    assert torch.allclose(recorded.mean, revealed.mean, atol=1e-5)
    assert torch.allclose(recorded.variance, revealed.variance, atol=1e-5)
    assert recorder.take() == {}


def test_passes_that_leave_running_statistics_unchanged_are_not_recorded() -> None:
    method = make_method("simclr").train()
    recorder = StatisticsRecorder(method, [LAYER])
    method.encode(method.clean(random_pixels(4)), tracked=False)
    method.eval()
    method.encode(method.clean(random_pixels(4)))
    assert recorder.take() == {}


def test_no_batch_reveals_nothing() -> None:
    moments = Moments(torch.zeros(2), torch.ones(2))
    assert from_running(moments, moments, batches=0, momentum=0.1) is None


def test_the_distance_by_hand() -> None:
    """Means: (0.5² + 0) / (1 + 1); deviations 3 and 1 for 2 and 1: 1 / 5; their mean."""
    observed = {"a": Moments(torch.tensor([1.0, 1.0]), torch.tensor([4.0, 1.0]))}
    other = {"a": Moments(torch.tensor([1.5, 1.0]), torch.tensor([9.0, 1.0]))}
    assert float(distance(other, observed)) == pytest.approx((0.125 + 0.2) / 2)
    assert float(distance(observed, observed)) == 0
