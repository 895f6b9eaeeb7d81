"""What `fedssl evaluate` found, for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedssl.score import Score


def print_score(probe: str, data: Mapping[str, Any], score: Score) -> None:
    """What was measured on what, the accuracy of each model, and what is unusual about it. `data` is the table of the
    images, as under [data]."""
    print(heading(probe, data, score))
    for model, accuracy in score.items():
        own = _own(score.own_mix.get(model))
        print(f"{model}: {accuracy:.2f}%{own}" + ("  (not in the average)" if model in score.apart else ""))
    if len(score) > 1:
        print(f"on average: {score.mean:.2f}% ± {score.std:.2f}{_own(score.own_mix_mean)}")
    if score.note:
        print(score.note)


def _own(mixed: float | None) -> str:
    return "" if mixed is None else f"  (in its own mix of classes: {mixed:.2f}%)"


def heading(probe: str, data: Mapping[str, Any], score: Score) -> str:
    """Such as: linear probe on cifar10: accuracy on 10,000 test images, learned from 500 labelled ones."""
    kind = "held-out" if data.get("holdout") else "test"
    learned = f", learned from {_counted(score.labelled, 'labelled image')}" if score.labelled else ""
    where = f"{probe} on {data.get('path') or data['name']}"
    return f"{where}: accuracy on {_counted(score.tested, f'{kind} image')}{learned}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")
