"""Secure aggregation: the server receives the sum of the clients' uploads and no single one.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017,
Figure 4, without the parts for active adversaries. Names of phases and keys are the paper's.
Departures: sums are in the ring of integers modulo 2⁶⁴. Clients are numbered from 1 within a round,
so that they do not learn each other's names. A client answers each phase of a round once.
At least three uploads must be in a sum.

Needs the extra `flower`, which contains `cryptography`.
"""
