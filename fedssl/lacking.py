"""What images lack for a probe to be measured on them, in a sentence that says what to do about it."""

from __future__ import annotations

from fedssl.data import Dataset

OF_CLIENTS = {  # probes that need the labels of clients' own images, and why
    "per-client": "the training images have no labels, so that nobody knows which classes a client has",
    "collaborative": "clients fine-tune with labels of their own, and the training images have none",
}


def lacking(data: Dataset, probe: str = "knn", trained_on: bool = True) -> str | None:
    """None where nothing is lacking. `trained_on`: whether these are a run's own images, of which none can be set aside
    any more once it has trained."""
    train, test = data.train, data.test
    if test is None or not len(test):
        return f"probes are measured on labelled test images, and {_no_test(train.labelled, len(train), trained_on)}"
    if not test.labelled:
        return f"probes are measured on labelled test images, and the {len(test):,} test images here have no labels"
    if not train.labelled and len(test) == 1:
        return (
            "the training images have no labels, and one labelled test image cannot be both learned from and "
            "measured on: probes need two or more"
        )
    return None if train.labelled else OF_CLIENTS.get(probe)


def _no_test(labelled: bool, count: int, trained_on: bool) -> str:
    """What there is none of, and where it could come from."""
    here = "there are no test images here" if labelled else "there are neither test images nor labels here"
    some = "data.test=PATH names a folder of them"
    if labelled:
        some = f"data.holdout=N sets N of the {count:,} labelled training images aside, or {some}"
    way = "measure on others with --on, or train anew, where" if trained_on else "--set"
    return f"{here}: {way} {some}"
