"""Maps of test images: components, neighbours, titles and UMAP."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from error_messages import raises
from tiny_runs import Go

from fedssl.analysis import analyse
from fedssl.analysis.maps import Map, same_class_nearby
from fedssl.core.console import ignore_message
from fedssl.core.errors import ConfigError
from fedssl.plots.style import model_title


def test_neighbours_of_the_same_class() -> None:
    """On a line at 0, 1, 2 and 10 with classes a, a, b, b.

    The nearest to 0 is 1 (same class), to 1 is 0, the first of two at equal distance (same), to 2
    is 1 (other), to 10 is 2 (same).
    """
    xy = np.array([[0.0, 0], [1, 0], [2, 0], [10, 0]])
    assert same_class_nearby(xy, np.array([0, 0, 1, 1]), nearest=1) == 0.75
    assert same_class_nearby(xy, np.array([0, 0, 1, 1]), nearest=9) == pytest.approx(1 / 3)


def test_maps_of_several_models(go: Go) -> None:
    run = go(**{"topology.name": "isolated"})
    apart = analyse("map", [run], notify=ignore_message).results
    assert {name: len(xy) for name, xy in apart["maps"].items()} == {"0": 24, "1": 24, "2": 24}
    assert [axes.get_title() for axes in Map().draw(apart).axes[:3]] == [
        "client 0",
        "client 1",
        "client 2",
    ]
    assert apart["labels"] == [i % 3 for i in range(24)]
    one = analyse("map", [run], notify=ignore_message, together=True, models=["0", "2"])
    assert {name: len(xy) for name, xy in one.results["maps"].items()} == {"0": 24, "2": 24}
    (legend,) = Map(together=True).draw(one.results).legends
    assert [text.get_text() for text in legend.get_texts()] == ["client 0", "client 2"]


def test_titles_of_models() -> None:
    """A run may have a number as its name: only a model's number is a client's."""
    names = ("global", "0", "hospital", "runs/7", "7/global", "mean")
    assert [model_title(name) for name in names] == [
        "global",
        "client 0",
        "hospital",
        "runs/client 7",
        "7/global",
        "mean",
    ]


def test_umap_is_used_or_reported_as_missing(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    run = go()
    monkeypatch.setitem(sys.modules, "umap", None)
    with raises(ConfigError):
        analyse("map", [run], notify=ignore_message, how="umap")
    asked: dict[str, Any] = {}

    def fake(**settings: Any) -> Any:
        asked.update(settings)
        return SimpleNamespace(fit_transform=lambda rows: rows[:, :2])

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=fake))
    results = analyse("map", [run], notify=ignore_message, how="umap", seed=3).results
    assert asked == {"n_neighbors": 15, "random_state": 3, "n_jobs": 1}
    assert len(results["maps"]["global"]) == 24
