"""Properties of every registered mean."""

from __future__ import annotations

import itertools

import pytest
import torch
from small_models import mean_of, small_model

from fedssl.core.state.state import State
from fedssl.engine.means import middle_values
from fedssl.engine.means.held_models import HeldModels
from fedssl.engine.means.mean_settings import MEANS, MeanSettings, WeightedMean

pytestmark = pytest.mark.rows("U12")

# Without means that other modules of this process have registered.
NAMES = [name for name in MEANS.names() if MEANS[name].__module__.startswith("fedssl.")]
ROBUST = [name for name in NAMES if name != "weighted"]


def models(count: int = 5, size: int = 20) -> list[State]:
    stream = torch.Generator().manual_seed(1)
    made = []
    for i in range(count):
        weights = torch.randn(size, generator=stream).tolist()
        statistics = torch.rand(3, generator=stream).tolist()
        made.append(small_model(weights, statistics, i))
    return made


def test_the_registered_means() -> None:
    assert NAMES == ["krum", "median", "multi-krum", "trimmed-mean", "weighted"]
    assert not WeightedMean.needs_all_uploads
    assert all(MEANS[name].needs_all_uploads for name in ROBUST)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (WeightedMean(), 1),
        (MEANS["median"](), 3),
        (MEANS["trimmed-mean"](trim=0.2), 3),
        (MEANS["trimmed-mean"](trim=3), 7),
        (MEANS["krum"](f=2), 7),
        (MEANS["multi-krum"](f=1, keep=6), 7),
    ],
)
def test_the_fewest_uploads(settings: MeanSettings, expected: int) -> None:
    assert settings.fewest_uploads == expected


@pytest.mark.parametrize("name", ROBUST)
def test_the_order_and_the_weights_of_uploads_do_not_matter(name: str) -> None:
    """To the last bit; `mean_of` weighs the first upload 1, the second 2 and so on."""
    mean = MEANS[name]()
    expected = mean_of(mean, models())
    for order in itertools.permutations(models()):
        merged = mean_of(mean, order)
        assert torch.equal(merged.floats, expected.floats)
        assert torch.equal(merged.counts, expected.counts)


@pytest.mark.parametrize("name", NAMES)
def test_the_mean_of_equal_models_is_that_model(name: str) -> None:
    model = models(1)[0]
    merged = mean_of(MEANS[name](), [model] * 5)
    assert torch.equal(merged.floats, model.floats)
    assert merged.layout == model.layout


@pytest.mark.parametrize("name", NAMES)
def test_uploads_are_left_unchanged(name: str) -> None:
    uploads = models()
    before = [upload.clone() for upload in uploads]
    merged = mean_of(MEANS[name](), uploads)
    merged.floats.zero_()
    merged.counts.zero_()
    for upload, copy in zip(uploads, before, strict=True):
        assert torch.equal(upload.floats, copy.floats)
        assert torch.equal(upload.counts, copy.counts)


@pytest.mark.parametrize("name", ROBUST)
def test_the_size_of_pieces_does_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = mean_of(MEANS[name](), models())
    monkeypatch.setattr(middle_values, "PIECE_VALUES", 10)  # two coordinates of five models
    assert torch.equal(mean_of(MEANS[name](), models()).floats, expected.floats)


def test_models_of_another_layout_are_an_error() -> None:
    held = HeldModels(lambda models: models[0].floats, lambda count: None)
    held.add(small_model([1.0]), 1.0)
    with pytest.raises(ValueError, match="has shape"):
        held.add(small_model([1.0, 2.0]), 1.0)
