"""Running statistics by hand: two layers, one of two channels and one of one."""

from __future__ import annotations

import math

import pytest
import torch

from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.engine.uploads.running_statistics import statistics_shift, variance_fault

pytestmark = pytest.mark.rows("U10")

LAYERS = Layout.of(
    [
        Entry("backbone.w", (1,), "weight"),
        Entry("backbone.bn.running_mean", (2,), "statistic"),
        Entry("backbone.bn.running_var", (2,), "statistic"),
        Entry("projector.1.running_mean", (1,), "statistic"),
        Entry("projector.1.running_var", (1,), "statistic"),
        Entry("backbone.bn.num_batches_tracked", (), "counter"),
    ]
)


def state(
    means: tuple[float, float, float],
    variances: tuple[float, float, float],
    layout: Layout = LAYERS,
) -> State:
    made = State.empty(layout)
    tensors = made.tensors()
    tensors["backbone.bn.running_mean"].copy_(torch.tensor(means[:2]))
    tensors["backbone.bn.running_var"].copy_(torch.tensor(variances[:2]))
    if "projector.1.running_mean" in tensors:
        tensors["projector.1.running_mean"].fill_(means[2])
        tensors["projector.1.running_var"].fill_(variances[2])
    return made


def test_the_shift_is_the_largest_over_layers() -> None:
    """First layer: means move by 3 and 0, deviations by 0 and from 2 to 6: (3² + 4²)/(1 + 4) is √5
    squared. Second layer, in the projector: the mean moves by 1 and the deviation is 1, of which a
    quarter counts.
    """
    sent = state((0, 0, 0), (1, 4, 1))
    assert statistics_shift(sent, state((3, 0, 1), (1, 36, 1))) == pytest.approx(
        math.sqrt(5), rel=1e-4
    )
    assert statistics_shift(sent, state((0, 0, 9), (1, 4, 1))) == pytest.approx(9 / 4, rel=1e-4)
    assert statistics_shift(sent, sent) == 0


def test_a_channel_without_variance_is_scaled_by_its_layer() -> None:
    """Its own deviation was 0: relative to that it would have moved by hundreds. The layer's scale
    is √(0 + 1) = 1.
    """
    assert statistics_shift(
        state((0, 0, 0), (0, 1, 1)), state((0, 0, 0), (1, 1, 1))
    ) == pytest.approx(1, rel=1e-2)


@pytest.mark.parametrize("absurd", [1e30, 3e38])
def test_an_absurd_shift_is_finite_and_large(absurd: float) -> None:
    found = statistics_shift(state((0, 0, 0), (1, 1, 1)), state((absurd, 0, 0), (1, 1, 1)))
    assert found == pytest.approx(absurd / math.sqrt(2), rel=1e-3)


def test_layers_that_only_one_model_has_do_not_count() -> None:
    fewer = Layout.of([entry for entry in LAYERS.entries if entry.part == "backbone"])
    sent = state((0, 0, 0), (1, 1, 0), fewer)
    assert statistics_shift(sent, state((0, 0, 99), (1, 1, 1))) == 0
    plain = Layout.of([Entry("backbone.w", (1,), "weight")])
    assert statistics_shift(State.empty(plain), State.empty(plain)) is None


def test_a_negative_variance_is_named() -> None:
    def fault(*variances: float) -> str | None:
        return variance_fault({"n": 3, "model": state((0, 0, 0), variances)})  # type: ignore[arg-type]

    assert fault(1, 0, 1) is None
    assert fault(1, 1, -1e-9) == "projector.1.running_var is negative"
    assert fault(math.nan, 1, 1) is None, "not finite, which is checked elsewhere"
