"""Federated algorithms, one file per paper."""

from fedssl.algorithms.ccl import CCL
from fedssl.algorithms.featarc import FeatARC
from fedssl.algorithms.fedavg import FedAvg
from fedssl.algorithms.fedbn import FedBN
from fedssl.algorithms.fedema import FedEMA
from fedssl.algorithms.fedprox import FedProx
from fedssl.algorithms.fedu import FedU
from fedssl.algorithms.perssfl import PerSSFL

__all__ = ["CCL", "FeatARC", "FedAvg", "FedBN", "FedEMA", "FedProx", "FedU", "PerSSFL"]
