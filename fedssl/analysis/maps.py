"""Maps of test images: features under each model in two dimensions, by t-SNE or UMAP.

Neighbours on a map are neighbours in the feature space; distances between far groups, and their
sizes, mean nothing. With `together`, the features of all models are on one map, coloured by model,
as in Dec-SSL's Figure 9: 20 principal components of all of them, then UMAP (or t-SNE). The paper
shows features of the models' own training images; here all models see the same test images, so that
only the model differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedssl.analysis.analysis import ANALYSES, Results, Summary, round_rows
from fedssl.analysis.features import FeatureAnalysis, check_equal_widths, data_reader
from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError
from fedssl.data.feature_clusters import principal_components
from fedssl.plots.feature_map import MIN_MAPPED, scatter, tsne
from fedssl.plots.style import model_title, new_figure, point_style
from fedssl.runs.run import Run

COMPONENTS = 20  # of all models' features, before they are put on one map
MAX_MAPS = 12
MAX_COLUMNS = 4
MAP_NAMES = {"tsne": "t-SNE", "umap": "UMAP"}
NEIGHBOURS = 10  # of each image, whose classes are compared with its own

Matrix = NDArray[np.floating[Any]]


def umap(features: Matrix, seed: int = 0) -> Matrix:
    """Return positions (n, 2) on a UMAP map with UMAP's default settings."""
    try:
        from umap import UMAP
    except ImportError:
        raise ConfigError(
            'this map needs umap-learn: in a clone of fedssl, pip install ".[maps]", '
            "or --set how=tsne"
        ) from None
    neighbours = min(15, len(features) - 1)
    embedding = UMAP(n_neighbors=neighbours, random_state=seed, n_jobs=1)
    return np.asarray(embedding.fit_transform(features))


def same_class_nearby(xy: Matrix, labels: NDArray[np.int64], nearest: int = NEIGHBOURS) -> float:
    """Return the share of the nearest points on a map that have a point's class, over all points.

    The point itself does not count.
    """
    squares = (xy * xy).sum(1)
    distance = squares[:, None] + squares[None] - 2 * xy @ xy.T
    np.fill_diagonal(distance, np.inf)
    near = np.argsort(distance, axis=1, kind="stable")[:, : min(nearest, len(xy) - 1)]
    return float((labels[near] == labels[:, None]).mean())


@ANALYSES.register("map")
class Map(FeatureAnalysis):
    """Map the features of test images under each model to two dimensions."""

    how: Literal["tsne", "umap"] = "tsne"  # kind of map; umap needs umap-learn
    together: bool = False  # all models on one map, coloured by model
    seed: int = 0  # of the map: another one turns it and moves its groups

    def measure(self, runs: Sequence[Run], notify: Notify) -> Results:
        """Return the positions of the images, and how many neighbours have the same class."""
        read = data_reader(notify)
        models = self.select_models(runs, read, notify)
        self._check_map_count(models)
        features, test = self.features(models, read, notify)
        if len(test) < MIN_MAPPED:
            raise ConfigError(f"a map needs at least {MIN_MAPPED} test images (got {len(test)})")
        maps = self._maps(features)
        labels = None
        nearby = {}
        if test.labelled:
            labels = test.labels.tolist()
            for name, xy in maps.items():
                nearby[name] = same_class_nearby(xy, test.labels.numpy())
        positions = {}
        for name, xy in maps.items():
            positions[name] = round_rows(xy.tolist(), 5)
        return {
            "classes": list(test.classes),
            "labels": labels,
            "maps": positions,
            "same_class_nearby": nearby,
        }

    def _check_map_count(self, models: Mapping[str, Any]) -> None:
        if not self.together and len(models) > MAX_MAPS:
            names = ", ".join(list(models)[:3])
            raise ConfigError(
                f"{len(models)} maps are too many: choose at most {MAX_MAPS} models with "
                f"--set models='[\"…\"]' ({names}, …)"
            )

    def _maps(self, features: Mapping[str, Tensor]) -> dict[str, Matrix]:
        """Return positions (n, 2) by model: on one map for each, or on one map for all."""
        if not self.together:
            return {name: self._map(rows.numpy()) for name, rows in features.items()}
        check_equal_widths(features)
        rows = torch.cat(list(features.values()))
        xy = self._map(principal_components(rows, COMPONENTS).numpy())
        return dict(zip(features, np.split(xy, len(features)), strict=True))

    def _map(self, features: Matrix) -> Matrix:
        if self.how == "umap":
            return umap(features, self.seed)
        return tsne(features, self.seed)

    def draw(self, results: Results) -> Any:
        """Return a figure with a map for each model, or with one map of all models."""
        if self.together:
            figure, axes = self._draw_together(results)
        else:
            figure, axes = _draw_apart(results)
        handles, names = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right center", frameon=False, markerscale=2)
        return figure

    def _draw_together(self, results: Results) -> tuple[Any, Any]:
        figure, axes = new_figure(1, 1, width=6.5, height=5)
        for number, (name, positions) in enumerate(results["maps"].items()):
            axes[0, 0].scatter(
                *np.array(positions).T,
                s=7,
                alpha=0.7,
                label=model_title(name),
                **point_style(number),
            )
        axes[0, 0].set(title=f"test images, {MAP_NAMES[self.how]}", xticks=[], yticks=[])
        axes[0, 0].set_frame_on(False)
        return figure, axes

    def summary(self, results: Results) -> Summary:
        """Return a table of how many neighbours on each map have the same class."""
        rows = []
        for name in results["maps"]:
            share = results["same_class_nearby"].get(name)
            text = "–"  # images without labels
            if share is not None:
                text = f"{100 * share:.1f}%"
            rows.append([name, text])
        columns = ["model", f"same class among the {NEIGHBOURS} nearest on the map"]
        note = "a map is an illustration, not a measure of a model: for that, use fedssl evaluate"
        count = len(next(iter(results["maps"].values())))
        return Summary(f"{MAP_NAMES[self.how]} of {count} test images", columns, rows, [note])


def _draw_apart(results: Results) -> tuple[Any, Any]:
    """Draw a panel for each model, coloured by class."""
    maps = results["maps"]
    if results["labels"]:
        labels = np.array(results["labels"])
        classes = results["classes"]
    else:
        labels = np.zeros(len(next(iter(maps.values()))), dtype=int)
        classes = ["without a label"]
    rows = -(-len(maps) // MAX_COLUMNS)
    columns = -(-len(maps) // rows)  # rows of about equal length
    figure, axes = new_figure(rows, columns, width=4.2, height=4.2)
    for panel in axes.flat[len(maps) :]:
        panel.set_axis_off()
    for panel, (name, positions) in zip(axes.flat, maps.items(), strict=False):
        title = model_title(name)
        scatter(panel, np.array(positions), labels, classes=classes, title=title)
    return figure, axes
