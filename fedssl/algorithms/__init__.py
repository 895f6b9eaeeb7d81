"""Federated algorithms, one file per paper."""

from fedssl.algorithms.ccl import CCL
from fedssl.algorithms.fedavg import FedAvg
from fedssl.algorithms.fedca import FedCA
from fedssl.algorithms.fedema import FedEMA
from fedssl.algorithms.fedprox import FedProx
from fedssl.algorithms.fedu import FedU
from fedssl.algorithms.serveropt import FedAdam, FedAvgM

__all__ = ["CCL", "FedAdam", "FedAvg", "FedAvgM", "FedCA", "FedEMA", "FedProx", "FedU"]
