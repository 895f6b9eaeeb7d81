"""The names of baselines, and of those that are not trained."""

from __future__ import annotations

from fedssl.method import MethodSettings
from fedssl.nets import given_weights

# random: weights drawn from the seed; start: the given initial weights of the run, if there are
# any; the others are topologies.
UNTRAINED = ("random", "start")
BASELINES = (*UNTRAINED, "isolated", "centralized")


def is_given_weights(method: MethodSettings) -> bool:
    """True if training starts from weights of a file, or of a module passed from Python."""
    return method.init is not None or given_weights(method.backbone) is not None


def first_model_name(method: MethodSettings) -> str:
    """Return the baseline with the initial weights of a run, to measure the effect of training."""
    return "start" if is_given_weights(method) else "random"
