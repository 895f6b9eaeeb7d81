"""Maps of test images: features under each model laid out in two dimensions, by t-SNE or UMAP, coloured by class.

Neighbours on a map are neighbours in the feature space; distances between far groups, and their sizes, mean nothing.
With `together`, the features of all models lie on one map, coloured by model, as in Dec-SSL's Figure 9: 20 principal
components of all of them, then UMAP (or t-SNE). The paper shows features of the models' own training images; these are
the same test images under every model, so that what differs is the model alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedssl.analysis.analysis import ANALYSES, Found, Summary, listed
from fedssl.analysis.features import OfFeatures, reader
from fedssl.analysis.look import COLOURS, MARKERS, figure, titled
from fedssl.data.progress import Say
from fedssl.errors import ConfigError
from fedssl.report.picture import FEWEST, scatter, tsne
from fedssl.run import Run

COMPONENTS = 20  # of all models' features, before they are put on one map
PANELS = 12  # maps in one picture
ACROSS = 4
WORDS = {"tsne": "t-SNE", "umap": "UMAP"}
NEAREST = 10  # images whose class is compared with one's own

Rows = NDArray[np.floating[Any]]


def umap(features: Rows, seed: int = 0) -> Rows:
    """Places (n, 2) by UMAP, as its defaults have it."""
    try:
        from umap import UMAP
    except ImportError:
        raise ConfigError(
            'this map needs umap-learn: in a clone of fedssl, pip install ".[maps]", or --set how=tsne'
        ) from None
    near = min(15, len(features) - 1)
    return np.asarray(UMAP(n_neighbors=near, random_state=seed, n_jobs=1).fit_transform(features))


def principal(features: Rows, components: int) -> Rows:
    """The first principal components (n, components) of features (n, d), as many as there are."""
    centred = features - features.mean(0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    return np.asarray((u * s)[:, :components])


def same_class_nearby(xy: Rows, labels: NDArray[np.int64], nearest: int = NEAREST) -> float:
    """The share of the nearest points on a map, itself not counted, that are of a point's own class; mean over all."""
    squares = (xy * xy).sum(1)
    distance = squares[:, None] + squares[None] - 2 * xy @ xy.T
    np.fill_diagonal(distance, np.inf)
    near = np.argsort(distance, axis=1, kind="stable")[:, : min(nearest, len(xy) - 1)]
    return float((labels[near] == labels[:, None]).mean())


@ANALYSES.register("map")
class Map(OfFeatures):
    how: Literal["tsne", "umap"] = "tsne"  # which map; umap needs umap-learn
    together: bool = False  # all models on one map, coloured by model
    seed: int = 0  # of the map: another one turns it and moves its groups

    def measure(self, runs: Sequence[Run], say: Say) -> Found:
        read = reader(say)
        models = self.chosen(runs, read, say)
        if not self.together and len(models) > PANELS:
            names = ", ".join(list(models)[:3])
            raise ConfigError(f"{len(models)} maps are too many: choose some with --set models='[\"…\"]' ({names}, …)")
        features, test = self.features(models, read, say)
        if len(test) < FEWEST:
            raise ConfigError(f"a map needs {FEWEST} test images, there are {len(test)}")
        rows = {name: each.numpy() for name, each in features.items()}
        labels = test.labels.numpy() if test.labelled else np.zeros(len(test), np.int64)
        maps = self._together(rows) if self.together else {name: self._lay(each) for name, each in rows.items()}
        near = {name: same_class_nearby(xy, labels) for name, xy in maps.items()} if test.labelled else {}
        return {
            "classes": list(test.classes),
            "labels": labels.tolist() if test.labelled else None,
            "maps": {name: [listed(place, 5) for place in xy.tolist()] for name, xy in maps.items()},
            "same_class_nearby": near,
        }

    def _lay(self, features: Rows) -> Rows:
        return umap(features, self.seed) if self.how == "umap" else tsne(features, self.seed)

    def _together(self, rows: Mapping[str, Rows]) -> dict[str, Rows]:
        if len({each.shape[1] for each in rows.values()}) > 1:
            raise ConfigError("models whose features differ in number cannot be on one map")
        xy = self._lay(principal(np.concatenate(list(rows.values())), COMPONENTS))
        return dict(zip(rows, np.split(xy, len(rows)), strict=True))

    def draw(self, found: Found) -> Any:
        maps = {name: np.array(xy) for name, xy in found["maps"].items()}
        labels = np.array(found["labels"] or [0] * len(next(iter(maps.values()))))
        if self.together:
            drawn, axes = figure(1, 1, width=6.5, height=5)
            for number, (name, xy) in enumerate(maps.items()):
                style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
                axes[0, 0].scatter(*xy.T, s=7, alpha=0.7, label=titled(name), **style)
            axes[0, 0].set(title=f"test images, {WORDS[self.how]}", xticks=[], yticks=[])
            axes[0, 0].set_frame_on(False)
        else:
            down = -(-len(maps) // ACROSS)
            across = -(-len(maps) // down)  # rows as even as they go
            drawn, axes = figure(down, across, width=4.2, height=4.2)
            for each in axes.flat[len(maps) :]:
                each.set_axis_off()
            classes = found["classes"] if found["labels"] else ["without a label"]
            for each, (name, xy) in zip(axes.flat, maps.items(), strict=False):
                scatter(each, xy, labels, classes, titled(name), MARKERS)
        handles, names = axes[0, 0].get_legend_handles_labels()
        drawn.legend(handles, names, loc="outside right center", frameon=False, markerscale=2)
        return drawn

    def summary(self, found: Found) -> Summary:
        near = found["same_class_nearby"]
        rows = [[name, f"{100 * near[name]:.1f}%" if near else "–"] for name in found["maps"]]
        columns = ["model", f"same class among the {NEAREST} nearest on the map"]
        note = "a map is for looking at: it is no measure of a model, which fedssl evaluate is"
        count = len(next(iter(found["maps"].values())))
        return Summary(f"{WORDS[self.how]} of {count} test images", columns, rows, [note])
