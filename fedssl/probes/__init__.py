"""Probes: measure an exported backbone with labelled images, without influence on training."""

from fedssl.probes.features import Labelled, balanced, embed, label_count
from fedssl.probes.finetune import fine_tune
from fedssl.probes.knn import default_neighbours, knn_predict
from fedssl.probes.linear import Solver, linear_predict
from fedssl.probes.protocol import LINEAR, TOGETHER, Name, Protocol, fine_tuning
from fedssl.probes.settings import OF_TRAINING, PROBES, ProbeSettings

__all__ = [
    "LINEAR",
    "OF_TRAINING",
    "PROBES",
    "TOGETHER",
    "Labelled",
    "Name",
    "ProbeSettings",
    "Protocol",
    "Solver",
    "balanced",
    "default_neighbours",
    "embed",
    "fine_tune",
    "fine_tuning",
    "knn_predict",
    "label_count",
    "linear_predict",
]
