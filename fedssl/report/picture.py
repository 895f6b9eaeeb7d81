"""picture.png: the accuracy per round, and a map of the test images before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedssl.errors import ConfigError

FEWEST = 5  # images on a map
MAPPED = 1000  # images on the map: enough to see clusters, few enough to tell points apart


def draw_run(
    path: Path,
    rounds: Sequence[Mapping[str, Any]],
    table: Mapping[str, Mapping[str, Any]],
    before: NDArray[np.float32],
    after: NDArray[np.float32],
    labels: NDArray[np.int64],
    classes: Sequence[str],
) -> None:
    """`before` and `after` are features (n, d) of the same n test images with `labels` (n,)."""
    try:
        import matplotlib
        import sklearn  # noqa: F401

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        raise ConfigError(
            'a picture needs matplotlib and scikit-learn: in a clone of fedssl, pip install ".[viz]"'
        ) from None
    figure, (curve, first, last) = plt.subplots(1, 3, figsize=(15, 4.8), layout="constrained")
    _curve(curve, rounds, table)
    for axes, features, title in ((first, before, "before: random backbone"), (last, after, "after")):
        _map(axes, features, labels, classes, title)
    handles, names = last.get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside right center", frameon=False, markerscale=2)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _curve(axes: Any, rounds: Sequence[Mapping[str, Any]], table: Mapping[str, Mapping[str, Any]]) -> None:
    points = [(line["round"], line["knn"]) for line in rounds if line["knn"] is not None]
    if "random" in table:
        points.insert(0, (0, table["random"]["knn"]["mean"]))
    if "this run" in table and points[-1:] != [(len(rounds), table["this run"]["knn"]["mean"])]:
        points.append((len(rounds), table["this run"]["knn"]["mean"]))
    if points:
        axes.plot(*zip(*points, strict=True), marker="o", color="C0", label="this run")
    for color, name, words in (
        ("C7", "random", "random backbone"),
        ("C1", "isolated", "each client alone, mean"),
        ("C2", "centralized", "all images pooled"),
    ):
        if name in table:
            axes.axhline(table[name]["knn"]["mean"], color=color, linestyle="--", label=words)
    axes.set(xlabel="round", ylabel="kNN accuracy on test images (%)", title="what the backbone is worth")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    if points:
        axes.legend(frameon=False)


def _map(
    axes: Any, features: NDArray[np.float32], labels: NDArray[np.int64], classes: Sequence[str], title: str
) -> None:
    if len(features) < FEWEST:
        axes.text(0.5, 0.5, f"a map needs {FEWEST} test images", ha="center")
        axes.set_axis_off()
        return
    scatter(axes, tsne(unit(features)), labels, classes, f"test images, {title}")


def unit(features: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Rows of length 1: directions are what the probes compare."""
    return np.asarray(features / np.linalg.norm(features, axis=1, keepdims=True).clip(1e-12))


def tsne(features: NDArray[np.floating[Any]], seed: int = 0) -> NDArray[np.floating[Any]]:
    """A place (n, 2) on a map for each of n features (n, d)."""
    from sklearn.manifold import TSNE

    near = min(30, (len(features) - 1) / 3)
    return np.asarray(TSNE(2, init="pca", random_state=seed, perplexity=near).fit_transform(features))


def scatter(
    axes: Any,
    xy: NDArray[np.floating[Any]],
    labels: NDArray[np.int64],
    classes: Sequence[str],
    title: str,
    markers: Sequence[str] = ("o",),
) -> None:
    """Places (n, 2) coloured by class; with several markers, neighbouring classes differ in those too."""
    for label in np.unique(labels):
        mine = labels == label
        name = classes[label] if len(classes) else str(label)
        marker = markers[label % len(markers)]
        axes.scatter(*xy[mine].T, s=7, color=f"C{label % 10}", label=name, marker=marker)
    axes.set(title=title, xticks=[], yticks=[])
    axes.set_frame_on(False)
