"""Warnings about a training that does not learn, from the lines of the rounds log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedssl.algorithm import Algorithm
from fedssl.method import Method
from fedssl.runs.collapse_warning import Collapse
from fedssl.runs.rounds_log import read_rounds

ChanceLoss = Callable[[int], float | None]  # from the number of images in a batch

# Of the loss of random guessing: at least this much is near it. From runs that learn: in the first
# rounds of SimCLR and MoCo on CIFAR-10 and Fashion-MNIST (`results/`), the loss is at most 0.97 of
# it, and then falls. Views that have nothing in common give 1.
NEAR = 0.98
ROUNDS = 5  # in a row
ADVICE = (
    "the views may be too strong; look at them with `fedssl views`, or choose a preset with "
    "--views. A lower or higher train.lr may help too"
)


def loss_and_chance(line: Mapping[str, Any], chance_loss: ChanceLoss) -> tuple[float, float] | None:
    """Return the loss of a round and that of random guessing, as means over images.

    None if no client has trained, or if the method has no such level.
    """
    loss = 0.0
    chance = 0.0
    images = 0
    for client in line["clients"]:
        steps = client.get("steps", 0)
        if not steps or client["images"] < 2 * steps:  # it has not trained
            continue
        chance_of_client = chance_loss(client["images"] // steps)
        if chance_of_client is None:
            return None
        images += client["images"]
        loss += client["images"] * client["loss"]
        chance += client["images"] * chance_of_client
    if not chance:
        return None
    return loss / images, chance / images


class NearChance:
    """Detect a loss near chance from the lines of the rounds log, in order.

    `earlier` are the lines of a run that is resumed.
    """

    def __init__(self, chance_loss: ChanceLoss, earlier: Iterable[Mapping[str, Any]] = ()) -> None:
        self._chance_loss = chance_loss
        self._rounds = 0  # near chance, in a row
        self._warned = False
        for line in earlier:
            self.update(line)

    def update(self, line: Mapping[str, Any]) -> str | None:
        """Add a round; return a warning, once, if the loss has stayed near chance."""
        compared = loss_and_chance(line, self._chance_loss)
        if compared is None:
            return None
        loss, chance = compared
        self._rounds += 1
        if loss < NEAR * chance:
            self._rounds = 0
        if self._rounds < ROUNDS or self._warned:
            return None
        self._warned = True
        return (
            f"the training loss has stayed near that of random guessing for {ROUNDS} rounds: "
            f"{ADVICE}"
        )


class RoundWarnings:
    """Detect collapse, and a loss near chance if the method is known, after each round.

    The lines of a log that exists already are those of a run that is resumed.
    """

    def __init__(self, algorithm: Algorithm, method: Method | None, log: Path) -> None:
        self._detectors: list[Collapse | NearChance] = [Collapse(read_rounds(log))]
        if method is not None:
            chance_loss = partial(algorithm.chance_loss, method)
            self._detectors.append(NearChance(chance_loss, read_rounds(log)))

    def update(self, line: Mapping[str, Any]) -> Iterator[str]:
        """Add a round; yield the warnings that it causes."""
        for detector in self._detectors:
            warning = detector.update(line)
            if warning is not None:
                yield warning
