"""Print the score of `fedssl evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedssl.evaluation.labelled_images import HALVED
from fedssl.evaluation.score import Score


def print_score(probe: str, data: Mapping[str, Any], score: Score) -> None:
    """Print a heading, the accuracy of each model, their average and the note of the score.

    `data` has the settings of the images, as under [data].
    """
    print(heading(probe, data, score))
    for model, accuracy in score.items():
        own_mix = _own_mix_text(score.own_mix.get(model))
        separate = "  (not in the average)" if model in score.excluded else ""
        print(f"{model}: {accuracy:.2f}%{own_mix}{separate}")
    if len(score) > 1:
        own_mix = _own_mix_text(score.own_mix_mean)
        print(f"on average: {score.mean:.2f}% ± {score.std:.2f}{own_mix}")
    if score.note:
        print(score.note)


def heading(probe: str, data: Mapping[str, Any], score: Score) -> str:
    """Return the probe, the data and the numbers of images.

    E.g. "knn (k = 20) on photos: accuracy on 200 test images, learned from 400 labelled images" or
    "linear on cifar10: accuracy on 10,000 test images, learned from 500 labelled images".
    """
    kind = "held-out" if data.get("holdout") else "test"
    name = data.get("path") or data["name"]
    if HALVED in (score.note or ""):  # all measured images are test images
        name = data.get("test") or name
    if score.neighbours is not None:
        probe = f"{probe} (k = {score.neighbours})"
    text = f"{probe} on {name}: accuracy on {_count(score.tested, f'{kind} image')}"
    if score.labelled and HALVED in (score.note or ""):
        text += f", learned from {_count(score.labelled, 'other labelled test image')}"
    elif score.labelled:
        text += f", learned from {_count(score.labelled, 'labelled image')}"
    return text


def _own_mix_text(accuracy: float | None) -> str:
    if accuracy is None:
        return ""
    return f"  (in its own mix of classes: {accuracy:.2f}%)"


def _count(number: int, noun: str) -> str:
    plural = "" if number == 1 else "s"
    return f"{number:,} {noun}{plural}"
