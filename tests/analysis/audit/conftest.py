"""Fixtures for the tests of audits: tiny runs."""

from tiny_runs import go, images, labelled

__all__ = ["go", "images", "labelled"]
