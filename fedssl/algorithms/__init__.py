"""Federated algorithms, one file per paper."""

from fedssl.algorithms.ccl import CCL
from fedssl.algorithms.featarc import FeatARC
from fedssl.algorithms.fedadam import FedAdam
from fedssl.algorithms.fedavg import FedAvg
from fedssl.algorithms.fedavgm import FedAvgM
from fedssl.algorithms.fedbn import FedBN
from fedssl.algorithms.fedca import FedCA
from fedssl.algorithms.fedema import FedEMA
from fedssl.algorithms.fedprox import FedProx
from fedssl.algorithms.fedu import FedU
from fedssl.algorithms.perssfl import PerSSFL

__all__ = [
    "CCL",
    "FeatARC",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedCA",
    "FedEMA",
    "FedProx",
    "FedU",
    "PerSSFL",
]
