"""Maps of features in two dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from fedssl.plots import feature_map
from fedssl.plots.feature_map import tsne

FEATURES = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)


def _most_threads(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the largest thread pool during t-SNE."""
    from sklearn.manifold import TSNE

    pools: list[int] = []
    fit_transform = TSNE.fit_transform

    def recorded(self: Any, features: Any) -> Any:
        pools.extend(pool["num_threads"] for pool in threadpool_info())
        return fit_transform(self, features)

    monkeypatch.setattr(TSNE, "fit_transform", recorded)
    assert tsne(FEATURES).shape == (12, 2)
    return max(pools)


def test_a_small_map_is_computed_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """More threads would take ten times the CPU time on a busy machine."""
    assert _most_threads(monkeypatch) == 1


def test_a_large_map_is_computed_by_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from threadpoolctl import threadpool_limits

    monkeypatch.setattr(feature_map, "MAX_MAPPED_BY_ONE_THREAD", 11)
    with threadpool_limits(2):
        assert _most_threads(monkeypatch) == 2


def test_equal_features_have_one_position() -> None:
    """Without this case, scikit-learn divides by their spread of 0 and crashes."""
    positions = tsne(np.zeros((8, 4), dtype=np.float32))
    assert positions.tolist() == [[0.0, 0.0]] * 8
