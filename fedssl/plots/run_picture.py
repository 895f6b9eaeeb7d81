"""picture.png: the accuracy per round, and a map of the test images before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedssl.core.errors import ConfigError

MIN_MAPPED = 5  # images needed for a map
MAPPED = 1000  # images on the map: enough to see clusters, few enough to see single points
# Rows of the table that are drawn as horizontal lines, with their colours and labels.
BASELINES = (
    ("random", "C7", "random backbone"),
    ("isolated", "C1", "each client alone, mean"),
    ("centralized", "C2", "all images pooled"),
)

Table = Mapping[str, Mapping[str, Any]]
Rounds = Sequence[Mapping[str, Any]]


def draw_run(
    path: Path,
    rounds: Rounds,
    table: Table,
    *,
    before: NDArray[np.float32],
    after: NDArray[np.float32],
    labels: NDArray[np.int64],
    classes: Sequence[str],
) -> None:
    """Write the picture of a run.

    `before` and `after` are features (n, d) of the same n test images with `labels` (n,).
    """
    try:
        import matplotlib
        import sklearn  # noqa: F401

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        raise ConfigError(
            "matplotlib and scikit-learn are not installed: "
            'in a clone of fedssl, run pip install ".[viz]"'
        ) from None
    figure, (curve, left_map, right_map) = plt.subplots(
        1, 3, figsize=(15, 4.8), layout="constrained"
    )
    _draw_curve(curve, rounds, table)
    _draw_map(left_map, before, labels, classes, title="before: random backbone")
    _draw_map(right_map, after, labels, classes, title="after")
    handles, names = right_map.get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside right center", frameon=False, markerscale=2)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_curve(axes: Any, rounds: Rounds, table: Table) -> None:
    points = _knn_by_round(rounds, table)
    if points:
        axes.plot(*zip(*points, strict=True), marker="o", color="C0", label="this run")
    for name, color, label in BASELINES:
        if name in table:
            axes.axhline(table[name]["knn"]["mean"], color=color, linestyle="--", label=label)
    axes.set(
        xlabel="round", ylabel="kNN accuracy on test images (%)", title="accuracy of the backbone"
    )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    if points:
        axes.legend(frameon=False)


def _knn_by_round(rounds: Rounds, table: Table) -> list[tuple[int, float]]:
    """Return measurements as (round, accuracy); those of the table are the first and the last."""
    points = []
    for line in rounds:
        if line["knn"] is not None:
            points.append((line["round"], line["knn"]))
    if "random" in table:
        points.insert(0, (0, table["random"]["knn"]["mean"]))
    if "this run" in table:
        last = (len(rounds), table["this run"]["knn"]["mean"])
        if points[-1:] != [last]:
            points.append(last)
    return points


def _draw_map(
    axes: Any,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    classes: Sequence[str],
    *,
    title: str,
) -> None:
    if len(features) < MIN_MAPPED:
        axes.text(0.5, 0.5, f"a map needs {MIN_MAPPED} test images", ha="center")
        axes.set_axis_off()
        return
    scatter(axes, tsne(unit(features)), labels, classes=classes, title=f"test images, {title}")


def unit(features: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Return the rows scaled to length 1: probes compare directions."""
    return np.asarray(features / np.linalg.norm(features, axis=1, keepdims=True).clip(1e-12))


def tsne(features: NDArray[np.floating[Any]], seed: int = 0) -> NDArray[np.floating[Any]]:
    """Return positions (n, 2) of features (n, d) on a t-SNE map."""
    from sklearn.manifold import TSNE

    perplexity = min(30, (len(features) - 1) / 3)
    embedding = TSNE(2, init="pca", random_state=seed, perplexity=perplexity)
    return np.asarray(embedding.fit_transform(features))


def scatter(
    axes: Any,
    xy: NDArray[np.floating[Any]],
    labels: NDArray[np.int64],
    *,
    classes: Sequence[str],
    title: str,
    markers: Sequence[str] = ("o",),
) -> None:
    """Draw positions (n, 2) coloured by class; classes also cycle through the markers."""
    for label in np.unique(labels):
        of_class = labels == label
        name = classes[label] if len(classes) else str(label)
        marker = markers[label % len(markers)]
        axes.scatter(*xy[of_class].T, s=7, color=f"C{label % 10}", label=name, marker=marker)
    axes.set(title=title, xticks=[], yticks=[])
    axes.set_frame_on(False)
