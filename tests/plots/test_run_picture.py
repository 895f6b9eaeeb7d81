"""The picture of a run: bars with intervals and single clients, honest axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedssl.plots.run_picture import draw_run

TABLE: dict[str, Any] = {
    "this run": {"knn": {"mean": 81.0}},
    "random": {"knn": {"mean": 73.0}},
    "isolated": {
        "knn": {"mean": 76.0, "models": {"a": 74.0, "b": 78.0, "mean": 79.0}, "excluded": ["mean"]}
    },
    "another row": {"knn": {"mean": 60.0}},
}
ROUNDS = [{"round": 1, "knn": None}, {"round": 2, "knn": 78.0}, {"round": 3, "knn": None}]


def _figure(images: int = 8, table: dict[str, Any] = TABLE, **more: Any) -> Any:
    features = np.random.default_rng(0).normal(size=(images, 4)).astype(np.float32)
    return draw_run(
        ROUNDS,
        table,
        intervals={("this run", "knn"): (78.5, 83.2)},
        before=features,
        after=features,
        labels=np.arange(images) % 2,
        classes=["cat", "dog"],
        **more,
    )


def test_the_curve_has_the_untrained_backbone_and_the_final_accuracy() -> None:
    curve, *_ = _figure().axes
    line = next(line for line in curve.lines if line.get_label() == "this run")
    assert list(zip(*line.get_data(), strict=True)) == [(0, 73.0), (2, 78.0), (3, 81.0)]
    assert curve.get_ylabel() == "kNN accuracy (%); axis from 55"


def test_bars_begin_at_0_and_have_intervals_and_single_clients() -> None:
    _, bars, *_ = _figure().axes
    heights = [patch.get_height() for patch in bars.patches if patch.get_height()]
    assert heights == [81.0, 76.0, 73.0, 60.0]
    assert bars.get_ylim()[0] == 0
    (interval,) = [c for c in bars.collections if len(c.get_segments()) == 1]
    assert interval.get_segments()[0][:, 1].tolist() == [78.5, 83.2]
    clients = [list(line.get_ydata()) for line in bars.lines if len(line.get_ydata()) == 2]
    assert [74.0, 78.0] in clients


def test_gains_over_clients_alone_have_a_panel_around_0() -> None:
    """It shows at least 5 points on either side, so that a small gain looks small."""
    _, _, panel, *_ = _figure(gains={"knn": (1.7, -0.5, 4.0), "linear": (-0.04, -2.2, 7.0)}).axes
    assert panel.get_title() == "gain over\neach client alone"
    assert panel.get_ylabel() == "points (paired)"
    intervals = [lines.get_segments()[0][:, 1].tolist() for lines in panel.collections]
    np.testing.assert_allclose(intervals, [[-0.5, 4.0], [-2.2, 7.0]])
    assert [text.get_text() for text in panel.texts] == ["+1.7", "+0.0"]
    low, high = panel.get_ylim()
    assert low < -5
    assert high > 7


def test_different_numbers_of_labels_are_in_the_legend() -> None:
    table = {"this run": {"knn": {"mean": 81.0}, "linear": {"mean": 84.0}}}

    def names(**learned: int) -> list[str]:
        _, bars, *_ = _figure(table=table, labels_learned=learned).axes
        return [name for name in bars.get_legend_handles_labels()[1] if name[:3] in ("kNN", "lin")]

    assert names(knn=5000, linear=100) == ["kNN (5,000 labels)", "linear probe (100 labels)"]
    assert names(knn=100, linear=100) == ["kNN", "linear probe"]


def test_few_images_have_no_map() -> None:
    _, _, before, _ = _figure(images=4).axes
    assert before.texts[0].get_text() == "a map needs 5 test images"


def test_without_accuracies_there_are_only_maps() -> None:
    curve, bars, before, _ = _figure(table={}).axes
    assert (curve.lines[:], bars.patches[:]) == ([], [])
    assert before.get_title() == "test images before training (t-SNE)"
