"""Probes measure what `export` names, with labelled images; they never touch training."""

from fedssl.probes.features import Labelled, balanced, embed
from fedssl.probes.knn import knn
from fedssl.probes.linear import linear

__all__ = ["Labelled", "balanced", "embed", "knn", "linear"]
