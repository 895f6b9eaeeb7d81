"""Federated algorithms, one file per paper."""

from fedssl.algorithms.ccl import CCL
from fedssl.algorithms.fedavg import FedAvg
from fedssl.algorithms.fedema import FedEMA
from fedssl.algorithms.fedprox import FedProx
from fedssl.algorithms.fedu import FedU

__all__ = ["CCL", "FedAvg", "FedEMA", "FedProx", "FedU"]
