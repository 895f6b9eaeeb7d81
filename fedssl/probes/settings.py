"""The settings of probes, and the static properties of each probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PositiveInt

from fedssl.core.settings import Settings, validate
from fedssl.probes.linear import Solver
from fedssl.probes.protocol import TOGETHER, Name


def _check_whole_above_one(labels: float) -> float:
    if labels > 1 and labels != int(labels):
        raise ValueError("must be a share of the images, at most 1, or a whole number of images")
    return labels


Labels = Annotated[int | float, Field(ge=0), AfterValidator(_check_whole_above_one)]


class DataTable(Settings):
    """A data set to measure on, as under [data]; its other settings are checked when it is read."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(min_length=1)


def _check_on(value: Any) -> Any:
    if isinstance(value, Mapping):
        return validate(DataTable, value, "probe.on")
    if value is None or isinstance(value, DataTable) or (isinstance(value, str) and value):
        return value
    raise ValueError("must be the name of a data set, the path of a folder, or a table")


class ProbeSettings(Settings):
    """How the backbone is measured; labels are used only here.

    The comment on a field's line is its meaning in docs/reference/experiment.md.
    """

    earlier_names: ClassVar = {"baselines": "beside"}

    every: int = Field(10, ge=0)  # rounds between kNN measurements; 0: only at the end
    # other labelled images on which kNN is measured too: the name of a data set, the path of a
    # folder with one folder per class, or a table as under `[data]`
    on: Annotated[str | DataTable | None, BeforeValidator(_check_on)] = None
    k: PositiveInt | None = None
    temperature: float = Field(0.1, gt=0)
    linear: bool = True  # a linear probe at the end
    labels: Labels = 0  # labelled images for the linear probe: a share up to 1, or a count; 0: all
    protocol: Name = "fedema"  # whose settings probes use: [evaluate](../how-to/evaluate.md)
    epochs: PositiveInt | None = None
    lr: float | None = Field(None, gt=0)
    batch: PositiveInt | None = None
    penalty: float = Field(0.0, ge=0)  # of the linear probe's loss: plus penalty/2 · ‖weight‖²
    solver: Solver = "protocol"  # of the linear probe; "lbfgs" finds the minimum, as no paper does
    frozen: bool = False  # of `semi`: train only the head on fixed features, unlike the papers
    # of `collaborative`: the new classifier; "mlp" has a hidden layer; default: the protocol's
    head: Literal["linear", "mlp"] | None = None
    picture: bool = False  # picture.png at the end: kNN curve, maps before and after training
    # measured too: "random" weights, the weights at the "start" of training, "isolated",
    # "centralized" runs; default: those that take at most twice the time of the run, with "start"
    # in place of "random" if weights are given
    baselines: tuple[str, ...] | None = None


OF_TRAINING = ("epochs", "lr", "batch")  # settings of probes that are trained
_TRAINED = ("labels", "protocol", *OF_TRAINING)
_LINEAR = (*_TRAINED, "penalty", "solver")


class Probe(NamedTuple):
    """Static properties of a probe: code tests these, not the probe's name.

    `learns` names the labelled images it learns from. "few": images that were left out of
    pre-training; "nothing": the run has trained the classifier already.
    """

    uses: tuple[str, ...]  # the settings that change its results
    learns: Literal["all", "few", "nothing"] = "all"
    whole: bool = False  # fine-tunes the whole model
    together: bool = False  # all clients train one model
    # The protocols that it has, the first by default. Empty: all, by default the experiment's.
    protocols: tuple[Name, ...] = ()

    @property
    def uses_features(self) -> bool:
        """True if it measures the fixed features of a backbone."""
        return not self.whole and self.learns != "nothing"


PROBES: Mapping[str, Probe] = {
    "knn": Probe(("k", "temperature")),
    "linear": Probe(_LINEAR),
    "semi": Probe((*_TRAINED, "frozen"), learns="few", whole=True),
    "classifier": Probe((), learns="nothing"),
    "per-client": Probe(_LINEAR),
    "collaborative": Probe(
        (*_TRAINED, "head"), whole=True, together=True, protocols=tuple(TOGETHER)
    ),
}
