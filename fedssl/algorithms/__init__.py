"""Federated algorithms, one file per paper."""

from fedssl.algorithms.fedavg import FedAvg

__all__ = ["FedAvg"]
