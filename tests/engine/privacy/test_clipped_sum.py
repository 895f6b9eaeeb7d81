"""C5: one client moves the sum by at most the clip, whatever it uploads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import Tensor

from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.engine.privacy import clipped_sum
from fedssl.engine.privacy.clipped_sum import ClippedSum

pytestmark = pytest.mark.rows("C5")

SIZES = {"model": 120, "target": 31}


def layout(size: int) -> Layout:
    """Return a layout of two tensors with a counter."""
    entries = [Entry("backbone.a", (size - 1,), "weight"), Entry("backbone.b", (1,), "norm")]
    return Layout.of([*entries, Entry("backbone.n", (), "counter")])


def models(rows: Mapping[str, Tensor], count: int = 0) -> dict[str, State]:
    """Return the states with these rows of floats."""
    states = {}
    for key, floats in rows.items():
        states[key] = State(layout(len(floats)), floats, torch.tensor([count]))
    return states


def rows(generator: torch.Generator, scale: float = 1.0) -> dict[str, Tensor]:
    return {key: scale * torch.randn(n, generator=generator) for key, n in SIZES.items()}


def exact_norm(total: ClippedSum) -> float:
    """Return the norm of a sum, computed in integers of any size."""
    square = sum(step**2 for steps in total.totals().values() for step in steps.tolist())
    return math.sqrt(square) * total.step


def adversarial(center: Mapping[str, Tensor], clip: float) -> Iterator[dict[str, Tensor]]:
    """Yield updates that a malicious client may choose."""
    for value in (0.0, 1e-45, -1e-40, 1e-8, 1.0, -1e4, 1e30, 3e38, math.inf, -math.inf, math.nan):
        yield {key: row + value for key, row in center.items()}
        single = {key: row.clone() for key, row in center.items()}
        single["target"][-1] = value
        yield single
    for length in (clip, math.nextafter(clip, 9), math.nextafter(clip, 0), clip * (1 + 1e-7)):
        axis = {key: row.clone() for key, row in center.items()}
        axis["model"][0] += length
        yield axis
        n = sum(SIZES.values())
        yield {key: row + length / math.sqrt(n) for key, row in center.items()}
    yield {key: -row for key, row in center.items()}
    yield {key: torch.full_like(row, torch.finfo(torch.float32).max) for key, row in center.items()}


@pytest.mark.parametrize(("clip", "noise"), [(1.0, 1.1), (0.3, 0.0), (7.0, 40.0), (1e-3, 0.01)])
def test_no_client_contributes_more_than_the_clip(clip: float, noise: float) -> None:
    """1,000 random updates of all sizes and 32 adversarial ones; two models count together."""
    stream = torch.Generator().manual_seed(1)
    center = rows(stream)
    largest = 0.0
    updates = list(adversarial(center, clip))
    for i in range(1000):
        step = rows(stream, scale=10.0 ** (i % 12 - 6))
        updates.append({key: center[key] + step[key] for key in SIZES})
    for update in updates:
        total = ClippedSum(models(center), clip, noise)
        total.add(models(update))
        norm = exact_norm(total)
        assert norm <= clip
        largest = max(largest, norm)
    assert largest > 0.999 * clip, "the clip is used"


def test_a_short_update_is_not_changed() -> None:
    """Δ = (0.3, 0.4) has a norm of 0.5; with a clip of 0.25 half of it is left."""
    start = torch.zeros(2)
    back = torch.tensor([0.3, 0.4])
    for clip, factor in [(1.0, 1.0), (0.25, 0.5)]:
        total = ClippedSum(models({"model": start}), clip, noise=0.0)
        total.add(models({"model": back}))
        mean = total.noised_mean(1)["model"]
        assert torch.allclose(mean.floats, factor * back, rtol=2e-6)


def test_double_precision_is_clipped_too_and_the_upload_is_not_changed() -> None:
    """The update is 100 long; its part of the sum is at most 1."""
    back = torch.full((4,), 50.0, dtype=torch.float64)
    total = ClippedSum(models({"model": torch.zeros(4)}), 1.0, noise=0.0)
    total.add(models({"model": back}))
    assert 0.999 < exact_norm(total) <= 1
    assert back.tolist() == [50.0] * 4


def test_rounding_does_not_lengthen_a_long_row() -> None:
    """Noise of 100 clips makes steps of 1.5·10⁻⁸ clips. Rounded to the nearest, 100,000 equal
    numbers whose fraction of a step is 0.6 would exceed the clip by 0.4 · 1.5·10⁻⁸ · √100,000 =
    1.9·10⁻⁶, twice the margin. Of 20 lengths, some have such fractions.
    """
    for n in range(100_000, 100_020):
        total = ClippedSum(models({"model": torch.zeros(n)}), 1.0, noise=100.0)
        total.add(models({"model": torch.ones(n)}))
        assert exact_norm(total) <= 1


def test_the_denominator_is_fixed() -> None:
    """Two of five clients asked sent (1, 0): the mean moves by 2/5, not by 1."""
    total = ClippedSum(models({"model": torch.tensor([3.0, 3.0])}), 10.0, noise=0.0)
    for _ in range(2):
        total.add(models({"model": torch.tensor([4.0, 3.0])}))
    assert total.noised_mean(5)["model"].floats.tolist() == pytest.approx([3.4, 3.0])


def test_a_row_longer_than_a_piece_is_summed_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = torch.Generator().manual_seed(2)
    center = models(rows(stream))
    upload = models(rows(stream))
    whole = ClippedSum(center, 0.7, 0.0)
    whole.add(upload)
    monkeypatch.setattr(clipped_sum, "PIECE", 64)
    pieces = ClippedSum(center, 0.7, 0.0)
    pieces.add(upload)
    for key, steps in whole.totals().items():
        assert (steps - pieces.totals()[key]).abs().max() <= 1, "the norm may round differently"


def test_counters_of_clients_are_not_released() -> None:
    start = models({"model": torch.zeros(4)}, count=5)
    total = ClippedSum(start, 1.0, noise=1.0)
    total.add(models({"model": torch.ones(4)}, count=99))
    assert total.noised_mean(1)["model"].counts.tolist() == [5]


def test_every_coordinate_has_noise_of_the_right_size() -> None:
    """std = noise · clip / clients = 1.5 · 2 / 10 in both models, ±6 standard errors."""
    n = 40_000
    start = {"model": torch.zeros(n), "target": torch.zeros(n)}
    released = ClippedSum(models(start), 2.0, noise=1.5).noised_mean(10)
    for state in released.values():
        assert state.floats.std().item() == pytest.approx(0.3, rel=6 / math.sqrt(2 * n))
        assert abs(state.floats.mean().item()) < 6 * 0.3 / math.sqrt(n)


def test_the_grid_does_not_depend_on_the_data() -> None:
    """Sums are integers, and noise is rounded to integers too: their sum reveals no low bits."""
    stream = torch.Generator().manual_seed(3)
    steps = set()
    for scale in (1e-6, 1.0, 1e6):
        total = ClippedSum(models(rows(stream)), 1.0, 1.1)
        total.add(models(rows(stream, scale)))
        steps.add(total.step)
        assert all(values.dtype == torch.int64 for values in total.totals().values())
    assert steps == {2.0**-32}


def test_another_layout_is_an_error() -> None:
    total = ClippedSum(models({"model": torch.zeros(4)}), 1.0, 1.0)
    with pytest.raises(ValueError, match="shape"):
        total.add(models({"model": torch.zeros(5)}))
