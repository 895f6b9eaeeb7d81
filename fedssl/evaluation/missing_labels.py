"""Explain why a probe cannot be measured on some images, and what to do about it."""

from __future__ import annotations

from fedssl.data import Dataset

# Probes that need the labels of the clients' own images, and why.
NEEDS_CLIENT_LABELS = {
    "per-client": (
        'probe "per-client" needs the classes of each client\'s images, but the training images '
        'have no labels: choose another probe, such as "linear"'
    ),
    "collaborative": (
        'probe "collaborative" fine-tunes on labels of each client\'s images, but the training '
        'images have no labels: choose another probe, such as "linear"'
    ),
}
_NEEDS_TEST = "accuracy is measured on labelled test images, but"
_TEST_IMAGES = (
    "labelled test images (a folder: `data.test=PATH`; an .npz file: `x_test` and `y_test`; "
    "Python: `test=`)"
)


def missing_labels(data: Dataset, probe: str = "knn", trained_on: bool = True) -> str | None:
    """Return why these images are not enough for a probe; None if they are.

    `trained_on`: these are the images of a run that has trained, so no test images can be split
    off them any more.
    """
    train = data.train
    test = data.test
    if test is None or not len(test):
        return f"{_NEEDS_TEST} {_no_test_images(train.labelled, len(train), trained_on)}"
    if not test.labelled:
        return f"{_NEEDS_TEST} the {len(test):,} test images here have no labels"
    if train.labelled:
        return None
    sizes = test.labels.bincount()
    if int((sizes > 0).sum()) == 1:
        return f"the {len(test):,} labelled test images are of one class only: two are needed"
    if int(sizes.max()) == 1:
        return (
            "the training images have no labels, so probes learn from one half of the labelled "
            "test images and are measured on the other, but no class has more than one test image: "
            "add more"
        )
    return NEEDS_CLIENT_LABELS.get(probe)


def _no_test_images(labelled: bool, count: int, trained_on: bool) -> str:
    """Return a sentence that test images are missing, and how to provide them."""
    problem = "this data set has neither test images nor labels"
    holdout = ""
    if labelled:
        problem = "this data set has no test images"
        holdout = f"`data.holdout=N` to measure on N of the {count:,} labelled training images"
    if trained_on:
        advice = f"measure on another data set with --on, or run again with {_TEST_IMAGES}"
        if labelled:
            advice += f", or start a new run with {holdout}"
    else:
        advice = f"add {_TEST_IMAGES}"
        if labelled:
            advice += f", or set {holdout}"
    return f"{problem}: {advice}"
