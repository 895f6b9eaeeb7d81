"""Topologies: which clients take part in a round, and which site merges which uploads."""
