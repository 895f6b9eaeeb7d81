"""Fixtures for the tests of studies in benchmarks/: tiny runs."""

from tiny_runs import go, images, labelled

__all__ = ["go", "images", "labelled"]
