"""What a user sets about measuring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, PositiveInt

from fedssl.probes.linear import Solver
from fedssl.probes.protocol import Name
from fedssl.settings import Settings


def _whole_above_one(labels: float) -> float:
    if labels > 1 and labels != int(labels):
        raise ValueError("a share of the images is at most 1, a number of them is whole")
    return labels


Labels = Annotated[int | float, Field(ge=0, allow_inf_nan=False), AfterValidator(_whole_above_one)]


class ProbeSettings(Settings):
    """How the backbone is measured; labels are used here and nowhere else."""

    every: int = Field(10, ge=0)  # rounds between kNN measurements; 0: only at the end
    k: PositiveInt = 200
    temperature: float = Field(0.1, gt=0)
    linear: bool = True  # a linear probe at the end
    labels: Labels = 0  # training images with labels for the linear probe: a share up to 1, or a count; 0: all
    protocol: Name = "fedema"  # the paper whose settings probes have: [evaluate](../how-to/evaluate.md)
    epochs: PositiveInt | None = None
    lr: float | None = Field(None, gt=0)
    batch: PositiveInt | None = None
    penalty: float = Field(0.0, ge=0)  # of the linear probe: penalty/2 · ‖weight‖² beside the mean cross-entropy
    solver: Solver = "protocol"  # of the linear probe; "lbfgs" finds the minimum itself, which no paper does
    frozen: bool = False  # of `semi`: train the head only, on fixed features; not the authors' protocol
    picture: bool = False  # picture.png at the end: the kNN curve, a map of the test images before and after
    beside: tuple[str, ...] = ()  # measured the same way: "random" backbone, "isolated" or "centralized" training


OF_TRAINING = ("epochs", "lr", "batch")  # of a probe that is trained
_TRAINED = ("labels", "protocol", *OF_TRAINING)
_LINEAR = (*_TRAINED, "penalty", "solver")


class Probe(NamedTuple):
    """What is to be known of a probe before it measures: code asks for this, and for no probe's name."""

    uses: tuple[str, ...]  # the settings that decide what it finds
    learns: Literal["all", "few", "nothing"] = "all"  # few: left out of pre-training; nothing: the run has trained it
    whole: bool = False  # fine-tunes the whole model
    together: bool = False  # all clients train one model


PROBES: Mapping[str, Probe] = {
    "knn": Probe(("k", "temperature")),
    "linear": Probe(_LINEAR),
    "semi": Probe((*_TRAINED, "frozen"), learns="few", whole=True),
    "classifier": Probe((), learns="nothing"),
    "per-client": Probe(_LINEAR),
    "collaborative": Probe(("labels", *OF_TRAINING), whole=True, together=True),
}
