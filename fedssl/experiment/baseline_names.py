"""The names of baselines, and which of them are models before training."""

from __future__ import annotations

from fedssl.method import MethodSettings
from fedssl.nets import given_weights

# random: weights drawn from the seed; start: the weights that the run starts from, if it is given
# some; the others are topologies.
UNTRAINED = ("random", "start")
BASELINES = (*UNTRAINED, "isolated", "centralized")


def is_given_weights(method: MethodSettings) -> bool:
    """True if training starts from weights of a file, or of a module passed from Python."""
    return method.init is not None or given_weights(method.backbone) is not None


def first_model_name(method: MethodSettings) -> str:
    """Return the baseline that shows what training added to the first weights of a run."""
    return "start" if is_given_weights(method) else "random"
