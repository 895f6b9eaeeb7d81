"""Maps of images in two dimensions, on which neighbours have similar features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedssl.plots.style import point_style

MIN_MAPPED = 5  # images needed for a map
MAPPED = 1000  # images on the map: enough to see clusters, few enough to see single points
# Up to this many images, threads of t-SNE mostly wait for each other: a map of 1,000 images takes
# 3 CPU seconds with one thread, and 10 to 29 with two on a busy machine.
MAX_MAPPED_BY_ONE_THREAD = 2000


def unit(features: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Return the rows scaled to length 1: probes compare directions."""
    return np.asarray(features / np.linalg.norm(features, axis=1, keepdims=True).clip(1e-12))


def tsne(features: NDArray[np.floating[Any]], seed: int = 0) -> NDArray[np.floating[Any]]:
    """Return positions (n, 2) of features (n, d) on a t-SNE map; 0 if all features are equal."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    # scikit-learn would divide by their spread of 0, and crash at the NaN that results.
    if not np.ptp(features, axis=0).any():
        return np.zeros((len(features), 2), dtype=features.dtype)
    perplexity = min(30, (len(features) - 1) / 3)
    embedding = TSNE(2, init="pca", random_state=seed, perplexity=perplexity)
    threads = 1 if len(features) <= MAX_MAPPED_BY_ONE_THREAD else None
    with threadpool_limits(threads):
        return np.asarray(embedding.fit_transform(features))


def scatter(
    axes: Any,
    xy: NDArray[np.floating[Any]],
    labels: NDArray[np.int64],
    *,
    classes: Sequence[str],
    title: str,
) -> None:
    """Draw positions (n, 2) with a colour and a marker for each class."""
    for label in np.unique(labels):
        of_class = labels == label
        name = str(label)
        if len(classes):
            name = classes[label]
        axes.scatter(*xy[of_class].T, s=9, label=name, **point_style(int(label)))
    axes.set(title=title, xticks=[], yticks=[])
    axes.set_frame_on(False)
