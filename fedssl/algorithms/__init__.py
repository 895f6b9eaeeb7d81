"""Federated algorithms, one file per paper."""

from fedssl.algorithms.fedavg import FedAvg
from fedssl.algorithms.fedema import FedEMA
from fedssl.algorithms.fedprox import FedProx
from fedssl.algorithms.fedu import FedU

__all__ = ["FedAvg", "FedEMA", "FedProx", "FedU"]
