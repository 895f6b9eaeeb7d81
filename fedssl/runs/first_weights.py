"""Print which tensors of `method.init` a run does not use."""

from __future__ import annotations

from collections import Counter

from fedssl import nets
from fedssl.core.console import Notify, shortened
from fedssl.experiment.experiment import Experiment

MAX_LISTED = 6


def announce_unused(experiment: Experiment, channels: int, notify: Notify) -> None:
    """Print the tensors in the file of first weights that have no place in the backbone."""
    method = experiment.method
    if method.init is None:
        return
    with nets.uninitialized():
        backbone = nets.build(method.backbone, channels, method.stem, method.norm)
    unused = nets.unused_tensors(backbone, method.init)
    if unused:
        notify(f"{method.init}: not used by the backbone: {_listed(unused)}")


def _listed(names: list[str]) -> str:
    """Return the parts that tensors belong to, with the number of tensors of each."""
    counts = Counter(name.partition(".")[0] for name in names)
    words = []
    for part, count in counts.items():
        word = part
        if count > 1:
            word = f"{part} ({count} tensors)"
        words.append(word)
    return ", ".join(shortened(words, MAX_LISTED))
